// Goal: ISTHMUS_CPUS places isthmus's own threads and nobody else's: the mask of the caller and of
// its later threads stays, a processor that is not permitted is refused by name (case O-21).
// Method: two forked ranks under a wide and a narrow mask look at the masks of all their threads,
// before the world, in it, after a collective with a callback, and after its end.

#include "base/cpus.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/multiprocess/marks.h"
#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::Marks;
using testing::rank_name;
using testing::Ranks;

std::string mask_of(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  const std::string key = "Cpus_allowed_list:\t";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) {
      return line.substr(key.size());
    }
  }
  return "";
}

std::string own_mask() {
  return mask_of(static_cast<pid_t>(::syscall(SYS_gettid)));
}

std::string mask_of_a_fresh_thread() {
  std::string mask;
  std::thread([&] { mask = own_mask(); }).join();
  return mask;
}

// Of all threads but this one.
std::set<std::string> other_masks() {
  std::set<std::string> masks;
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t thread = std::stoi(entry.path().filename().string());
    if (thread != self) {
      masks.insert(mask_of(thread));
    }
  }
  return masks;
}

bool narrow(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    CPU_SET(static_cast<std::size_t>(cpu), &set);
  }
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

// Two asynchronous operations with callbacks; each rank is the first to start one, so that it has a
// driver and a lane.
bool collectives_with_callbacks(World& world, const Marks& marks) {
  const Deadline deadline = Deadline::after_ms(20'000);
  for (int first = 0; first < 2; ++first) {
    const std::string started = "started" + std::to_string(first);
    if (world.rank() != first && !marks.wait_for(started)) {
      return false;
    }
    float value = 1.0F;
    Result<WorkRef> work = world.communicator().start(
        {OpKind::kAllReduce, DType::kFloat32, RedOp::kSum, 0, &value, &value, 1});
    if (!work.ok()) {
      return false;
    }
    std::atomic<bool> called{false};
    (*work)->on_done([&] { called.store(true); });
    if (world.rank() == first) {
      marks.put(started, "");
    }
    const bool done = (*work)->wait(deadline).ok();
    while (!called.load()) {  // it uses what is here
      ::sched_yield();
    }
    if (!done || value != 2.0F) {
      return false;
    }
  }
  return true;
}

struct Placement {
  const char* name;
  bool wide;    // the caller may use all processors, else only the first
  bool chosen;  // ISTHMUS_CPUS is the last processor, else empty
};

class Cpus : public ::testing::TestWithParam<Placement> {};

TEST_P(Cpus, OnlyOwnThreadsAreMoved) {
  const Result<std::vector<int>> permitted = permitted_cpus();
  ASSERT_TRUE(permitted.ok());
  const Placement& placement = GetParam();
  const std::string chosen = std::to_string(permitted->back());
  const std::string callers =
      placement.wide ? cpus_text(*permitted) : std::to_string(permitted->front());
  const std::string helpers = placement.chosen ? chosen : callers;
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  // The ranks inherit it: their worlds are made under it.
  ASSERT_TRUE(narrow(placement.wide ? *permitted : std::vector<int>{permitted->front()}));
  const Marks marks;
  Ranks::Options options;
  if (placement.chosen) {
    options.variables = {{"ISTHMUS_CPUS", chosen}};
  }
  Ranks ranks(options, [&](World& world) {
    std::string seen = own_mask() + " " + mask_of_a_fresh_thread();
    const bool done = collectives_with_callbacks(world, marks);
    seen += " " + own_mask() + " " + mask_of_a_fresh_thread();
    std::set<std::string> others = other_masks();
    // A thread that was just made has yet to set its mask.
    const Deadline deadline = Deadline::after_ms(20'000);
    while (others != std::set<std::string>{helpers} && deadline.left_ms(monotonic_ns()) > 0) {
      ::sched_yield();
      others = other_masks();
    }
    world.shutdown("the test is over");
    seen += " " + own_mask() + " " + mask_of_a_fresh_thread();
    std::string helper_masks;
    for (const std::string& mask : others) {
      helper_masks += mask + ";";
    }
    marks.put(rank_name(world.rank()), seen + " helpers " + helper_masks);
    return done ? 0 : 1;
  });
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  std::string expected;
  for (int look = 0; look < 6; ++look) {
    expected += callers + " ";
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.wait(rank), 0);
    EXPECT_EQ(marks.get(rank_name(rank)), expected + "helpers " + helpers + ";");
  }
}

INSTANTIATE_TEST_SUITE_P(Masks, Cpus,
                         ::testing::Values(Placement{"WideChosen", true, true},
                                           Placement{"WideInherited", true, false},
                                           Placement{"NarrowChosen", false, true},
                                           Placement{"NarrowInherited", false, false}),
                         [](const auto& tested) { return tested.param.name; });

TEST(Cpus, OnesThatAreNotPermittedEndTheStart) {
  const Result<std::vector<int>> permitted = permitted_cpus();
  ASSERT_TRUE(permitted.ok());
  if (permitted->back() == kCpusMax - 1) {
    GTEST_SKIP() << "this machine has every processor there can be";
  }
  const Marks marks;
  Ranks::Options options;
  options.variables = {{"ISTHMUS_CPUS", std::to_string(permitted->back() + 1)}};
  options.told = [&](int rank, const Error& error) { marks.put(rank_name(rank), error.message); };
  Ranks ranks(options, [](World&) { return 0; });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.wait(rank), Ranks::kNoWorld);
    const std::string text = marks.get(rank_name(rank));
    EXPECT_NE(text.find(fmt::format("ISTHMUS_CPUS: processors {} are not permitted",
                                    permitted->back() + 1)),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("permitted are " + cpus_text(*permitted)), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace isthmus
