// Goal: nothing hangs and nothing is silent: each survivor names the rank to blame, in time.
// Method: forked ranks that are killed, stopped, absent or wrong; each rank writes the error it got
// into a file of the test's folder, and the parent reads them.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/clock.h"
#include "base/temp_folder.h"
#include "tests/multiprocess/marks.h"
#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::kNsPerMs;
using testing::Marks;
using testing::nodes_of;
using testing::rank_name;
using testing::Ranks;
using testing::Told;
using testing::told;

// Loops all_reduce until it fails; marks its start, then "<ms until the error> <text>".
int loop_until_error(World& world, const Marks& marks, std::size_t count, bool mapped = false) {
  std::vector<float> own(count, 1.0F);
  const MemoryRegion region = world.allocate(count * sizeof(float)).value();
  float* const data = mapped ? reinterpret_cast<float*>(region.data()) : own.data();
  for (int i = 0;; ++i) {
    if (i == 5) {
      marks.put("running" + std::to_string(world.rank()), "");
    }
    const Status status =
        world.communicator().all_reduce(data, data, count, DType::kFloat32, RedOp::kMax);
    if (!status.ok()) {
      marks.put(rank_name(world.rank()),
                fmt::format("{} {}", monotonic_ns() / kNsPerMs, status.error().message));
      return 3;
    }
  }
}

// Every rank has loops of loop_until_error() behind it.
bool all_run(const Marks& marks, int size) {
  bool all = true;
  for (int rank = 0; rank < size; ++rank) {
    all = all && marks.wait_for("running" + std::to_string(rank));
  }
  return all;
}

// The other ranks of four end, and name the one that was killed in time.
void expect_named(Ranks& ranks, const Marks& marks, int killed, std::int64_t killed_ms) {
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == killed) {
      continue;
    }
    EXPECT_EQ(ranks.wait(rank), 3);
    const Told error = told(marks, rank);
    EXPECT_NE(error.text.find(fmt::format("rank {} is gone", killed)), std::string::npos)
        << error.text;
    EXPECT_LT(error.at_ms - killed_ms, 2000) << error.text;
  }
}

class Death : public ::testing::TestWithParam<std::string> {};

TEST_P(Death, KilledRankIsNamedByEverySurvivorWithinTwoSeconds) {
  const Marks marks;
  Ranks::Options options;
  options.size = 4;
  options.node_ids = nodes_of(GetParam());
  options.timeout_ms = 300'000;
  Ranks ranks(options, [&](World& world) { return loop_until_error(world, marks, 1 << 18); });
  ASSERT_TRUE(all_run(marks, options.size));
  const std::int64_t killed_ms = monotonic_ns() / kNsPerMs;
  ::kill(ranks.pid(2), SIGKILL);
  EXPECT_EQ(ranks.wait(2), -SIGKILL);
  expect_named(ranks, marks, 2, killed_ms);
}

// Its memory is being read by the others, by loads or by copies between processes.
class DeathOfTheRead : public ::testing::TestWithParam<bool> {};

TEST_P(DeathOfTheRead, KilledRankIsNamedByEverySurvivorWithinTwoSeconds) {
  const Marks marks;
  const bool mapped = GetParam();
  Ranks::Options options;
  options.size = 4;
  options.timeout_ms = 300'000;
  if (!mapped) {
    options.variables = {{"ISTHMUS_ALGO", "pull_all_reduce"}};
  }
  Ranks ranks(options,
              [&](World& world) { return loop_until_error(world, marks, 1 << 20, mapped); });
  ASSERT_TRUE(all_run(marks, options.size));
  const std::int64_t killed_ms = monotonic_ns() / kNsPerMs;
  ::kill(ranks.pid(2), SIGKILL);
  EXPECT_EQ(ranks.wait(2), -SIGKILL);
  expect_named(ranks, marks, 2, killed_ms);
}

INSTANTIATE_TEST_SUITE_P(Ways, DeathOfTheRead, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "Mapped" : "Pulled"; });

// A survivor that sees the death first fails and frees the buffer that a slower one still reads.
TEST(PulledBuffer, FreedByARankThatFailedIsNotTheCause) {
  for (int round = 0; round < 5; ++round) {
    const Marks marks;
    Ranks::Options options;
    options.size = 3;
    options.timeout_ms = 300'000;
    options.variables = {{"ISTHMUS_ALGO", "pull_all_reduce"}};
    Ranks ranks(options, [&](World& world) {
      const int code = loop_until_error(world, marks, 1 << 22);
      marks.put("freed" + std::to_string(world.rank()), "");
      marks.wait_for("freed1");
      return code;
    });
    ASSERT_TRUE(all_run(marks, options.size));
    ::kill(ranks.pid(1), SIGSTOP);
    ::kill(ranks.pid(2), SIGKILL);
    ASSERT_TRUE(marks.wait_for("freed0"));
    ::kill(ranks.pid(1), SIGCONT);
    for (const int rank : {0, 1}) {
      EXPECT_EQ(ranks.wait(rank), 3);
      const std::string text = told(marks, rank).text;
      EXPECT_NE(text.find("rank 2 is gone"), std::string::npos) << text;
    }
  }
}

TEST_P(Death, IsSeenThoughAForkedChildLives) {
  const Marks marks;
  Ranks::Options options;
  options.size = 4;
  options.node_ids = nodes_of(GetParam());
  options.timeout_ms = 300'000;
  Ranks ranks(options, [&](World& world) {
    if (world.rank() == 2 && ::fork() == 0) {
      ::prctl(PR_SET_PDEATHSIG, 0);
      ::alarm(30);
      marks.wait_for("over", 30'000);
      ::_exit(0);
    }
    return loop_until_error(world, marks, 1000);
  });
  ASSERT_TRUE(all_run(marks, options.size));
  const std::int64_t killed_ms = monotonic_ns() / kNsPerMs;
  ::kill(ranks.pid(2), SIGKILL);
  expect_named(ranks, marks, 2, killed_ms);
  marks.put("over", "");
}

TEST_P(Death, StoppedRankIsNamedAtTheTimeLimit) {
  const Marks marks;
  Ranks::Options options;
  options.size = 4;
  options.node_ids = nodes_of(GetParam());
  options.timeout_ms = 2'000;
  Ranks ranks(options, [&](World& world) { return loop_until_error(world, marks, 1 << 18); });
  ASSERT_TRUE(all_run(marks, options.size));
  const std::int64_t stopped_ms = monotonic_ns() / kNsPerMs;
  ::kill(ranks.pid(3), SIGSTOP);
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(ranks.wait(rank), 3);
    const Told error = told(marks, rank);
    EXPECT_NE(error.text.find("waiting for rank 3"), std::string::npos) << error.text;
    EXPECT_NE(error.text.find("2000 ms"), std::string::npos) << error.text;
    EXPECT_GE(error.at_ms - stopped_ms, 1500) << error.text;
    EXPECT_LT(error.at_ms - stopped_ms, 5000) << error.text;
  }
  ::kill(ranks.pid(3), SIGCONT);
  EXPECT_EQ(ranks.wait(3), 3) << told(marks, 3).text;
}

TEST_P(Death, AbsentRankIsNamedAtTheTimeLimit) {
  const Marks marks;
  Ranks::Options options;
  options.size = 4;
  options.node_ids = nodes_of(GetParam());
  options.timeout_ms = 1'000;
  Ranks ranks(options, [&](World& world) {
    if (world.rank() == 1) {
      return marks.wait_for("over", 30'000) ? 0 : 1;
    }
    return loop_until_error(world, marks, 100);
  });
  for (const int rank : {0, 2, 3}) {
    EXPECT_EQ(ranks.wait(rank), 3);
    const Told error = told(marks, rank);
    EXPECT_NE(error.text.find("waiting for rank 1"), std::string::npos) << error.text;
  }
  marks.put("over", "");
  EXPECT_EQ(ranks.wait(1), 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Death, ::testing::Values("aaaa", "aabb", "abcd"),
                         [](const auto& tested) { return tested.param; });

TEST(Failure, ARankThatLeftIsNamed) {
  const Marks marks;
  Ranks::Options options;
  options.size = 2;
  Ranks ranks(options, [&](World& world) {
    const std::vector<int> both = {0, 1};
    {
      Result<std::unique_ptr<Communicator>> group = world.new_group(both, "short");
      if (!group.ok() || !(*group)->barrier().ok()) {
        return 1;
      }
      if (world.rank() == 0) {
        marks.put(rank_name(0), (*group)->barrier().error().message);
      }
    }
    // The world is another group: it goes on.
    return world.communicator().barrier().ok() ? 0 : 2;
  });
  EXPECT_EQ(ranks.wait_all(), (std::vector<int>{0, 0}));
  EXPECT_NE(marks.get(rank_name(0)).find("rank 1 has left"), std::string::npos)
      << marks.get(rank_name(0));
}

struct Leaving {
  std::string layout;
  int leaver = 1;
  bool process_ends = false;
};

class Leaver : public ::testing::TestWithParam<Leaving> {};

// Rank 0 has begun a gather, and posted what it has to, when another rank ends its world in place
// of calling: the survivors name it at once, as one that left in good order.
TEST_P(Leaver, IsNamedLongBeforeTheTimeLimit) {
  const Leaving tested = GetParam();
  const Marks marks;
  Ranks::Options options;
  options.size = static_cast<int>(tested.layout.size());
  options.node_ids = nodes_of(tested.layout);
  options.timeout_ms = 50'000;
  if (options.node_ids.front() != options.node_ids.back()) {
    options.variables = {{"ISTHMUS_ALGO", "direct_gather"}};
  }
  Ranks ranks(options, [&](World& world) {
    std::vector<float> mine(100, 1.0F);
    std::vector<float> all(400);
    const Call call{OpKind::kGather, DType::kFloat32, RedOp::kSum, 0,
                    mine.data(),     all.data(),      mine.size()};
    if (!world.communicator().run(call).ok()) {
      return 1;
    }
    if (world.rank() == tested.leaver) {
      marks.wait_for("posted");
      world.shutdown("over");
      return tested.process_ends || marks.wait_for("over", 50'000) ? 0 : 2;
    }
    const Result<WorkRef> work = world.communicator().start(call);
    if (!work.ok()) {
      return 3;
    }
    const std::int64_t begin_ns = monotonic_ns();
    if (world.rank() == 0) {
      marks.put("posted", "");
    }
    Status status = (*work)->wait(Deadline::after_ms(40'000));
    // The others may have been done with their part.
    if (status.ok() && world.rank() != 0) {
      status = world.communicator().barrier();
    }
    marks.put(rank_name(world.rank()), fmt::format("{} {}", (monotonic_ns() - begin_ns) / kNsPerMs,
                                                   status.ok() ? "" : status.error().message));
    return !status.ok() && status.error().code == Code::kAborted ? 0 : 4;
  });
  for (int rank = 0; rank < options.size; ++rank) {
    if (rank == tested.leaver) {
      continue;
    }
    EXPECT_EQ(ranks.wait(rank), 0) << told(marks, rank).text;
    const Told error = told(marks, rank);
    EXPECT_NE(error.text.find(fmt::format("rank {} has left", tested.leaver)), std::string::npos)
        << error.text;
    EXPECT_LT(error.at_ms, 10'000) << error.text;
  }
  marks.put("over", "");
  EXPECT_EQ(ranks.wait(tested.leaver), 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Leaver,
                         ::testing::Values(Leaving{"aaaa", 1, false}, Leaving{"aabb", 1, false},
                                           Leaving{"aabb", 1, true}, Leaving{"aabb", 2, false},
                                           Leaving{"aabb", 2, true}),
                         [](const auto& tested) {
                           return fmt::format("{}{}{}", tested.param.layout, tested.param.leaver,
                                              tested.param.process_ends ? "ends" : "stays");
                         });

// Rank 0 waits in a group that the death does not concern: it goes on to sleep, 8 ms at a time,
// which shows in how often it gave its core away: 50 times in the 400 ms that are looked at.
TEST(Failure, WhoeverWaitsSleepsAfterADeathToo) {
  const Marks marks;
  Ranks::Options options;
  options.size = 3;
  Ranks ranks(options, [&](World& world) {
    if (world.rank() == 2) {
      return marks.wait_for("never", 60'000) ? 0 : 1;
    }
    const std::vector<int> pair = {0, 1};
    Result<std::unique_ptr<Communicator>> group = world.new_group(pair, "pair");
    if (!group.ok() || !(*group)->barrier().ok()) {
      return 1;
    }
    if (world.rank() == 1) {
      return marks.wait_for("go") && (*group)->barrier().ok() ? 0 : 1;
    }
    const auto sleeps = [] {
      rusage use{};
      return ::getrusage(RUSAGE_THREAD, &use) == 0 ? use.ru_nvcsw : -1;
    };
    int asked_since = 0;
    long slept = 0;
    CallOptions asking;
    // Asked about ten times a second.
    asking.keep_waiting = [&] {
      marks.put("asleep", "");
      if (asked_since == 0 && marks.get("killed").empty()) {
        return true;
      }
      ++asked_since;
      if (asked_since == 3) {
        slept = sleeps();
      } else if (asked_since == 7) {
        slept = sleeps() - slept;
        marks.put("go", "");
      }
      return true;
    };
    const Status status = (*group)->barrier(asking);
    marks.put(rank_name(0), fmt::format("{} {}", slept, status.ok() ? "" : status.error().message));
    return status.ok() ? 0 : 2;
  });
  ASSERT_TRUE(marks.wait_for("asleep"));
  ::kill(ranks.pid(2), SIGKILL);
  EXPECT_EQ(ranks.wait(2), -SIGKILL);
  marks.put("killed", "yes");
  EXPECT_EQ(ranks.wait(0), 0) << told(marks, 0).text;
  EXPECT_EQ(ranks.wait(1), 0);
  EXPECT_GE(told(marks, 0).at_ms, 20);
}

// Rank 1 shares only the world with rank 2: it must not blame rank 3, which only follows.
TEST(Failure, TheFirstDeathIsNamedInGroupsThatItWasNotIn) {
  const Marks marks;
  Ranks::Options options;
  options.size = 4;
  options.node_ids = nodes_of("aabb");
  options.timeout_ms = 60'000;
  Ranks ranks(options, [&](World& world) {
    const std::vector<int> lane = {world.rank() % 2, world.rank() % 2 + 2};
    Result<std::unique_ptr<Communicator>> group = world.new_group(lane, "replicate");
    if (!group.ok() || !(*group)->barrier().ok()) {
      return 1;
    }
    marks.put("running" + std::to_string(world.rank()), "");
    if (world.rank() % 2 == 0) {
      return marks.wait_for("never", 60'000) ? 0 : 1;
    }
    if (world.rank() == 3) {
      marks.wait_for("killed");
      return world.communicator().barrier().ok() ? 1 : 4;
    }
    const Status status = (*group)->barrier();
    marks.put(rank_name(1), "0 " + (status.ok() ? std::string() : status.error().message));
    return 3;
  });
  ASSERT_TRUE(all_run(marks, options.size));
  ::kill(ranks.pid(2), SIGKILL);
  EXPECT_EQ(ranks.wait(2), -SIGKILL);
  marks.put("killed", "");
  EXPECT_EQ(ranks.wait(3), 4);
  EXPECT_EQ(ranks.wait(1), 3);
  EXPECT_NE(told(marks, 1).text.find("rank 2 is gone"), std::string::npos) << told(marks, 1).text;
}

// Of the processes' files in /dev/shm, open or mapped, the inodes. Other programs may use /dev/shm.
std::set<ino_t> shm_inodes(const Ranks& ranks, int size) {
  struct stat folder {};

  EXPECT_EQ(::stat("/dev/shm", &folder), 0);
  std::set<ino_t> inodes;
  for (int rank = 0; rank < size; ++rank) {
    const std::string process = fmt::format("/proc/{}", ranks.pid(rank));
    for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
      struct stat file {};

      if (::stat(entry.path().c_str(), &file) == 0 && file.st_dev == folder.st_dev &&
          S_ISREG(file.st_mode)) {
        inodes.insert(file.st_ino);
      }
    }
    std::ifstream maps(process + "/maps");
    for (std::string line; std::getline(maps, line);) {
      std::istringstream fields(line);
      std::string range;
      std::string rights;
      std::string offset;
      std::string device;
      ino_t inode = 0;
      fields >> range >> rights >> offset >> device >> inode;
      if (device == fmt::format("{:02x}:{:02x}", ::gnu_dev_major(folder.st_dev),
                                ::gnu_dev_minor(folder.st_dev))) {
        inodes.insert(inode);
      }
    }
  }
  return inodes;
}

// The names in /dev/shm that lead to one of the files.
std::vector<std::string> shm_names(const std::set<ino_t>& inodes) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    struct stat file {};

    if (::lstat(entry.path().c_str(), &file) == 0 && inodes.contains(file.st_ino)) {
      names.push_back(entry.path());
    }
  }
  return names;
}

struct Kills {
  const char* name;
  bool files_in_dev_shm;
  std::vector<int> ranks;
};

class DevShm : public ::testing::TestWithParam<Kills> {};

TEST_P(DevShm, NothingIsLeftAfterKills) {
  const Marks marks;
  Ranks::Options options;
  options.size = 4;
  if (GetParam().files_in_dev_shm) {
    // Small: a container's /dev/shm has 64 MiB.
    options.variables = {{"ISTHMUS_SHM_NAMED", "1"}, {"ISTHMUS_STAGING_MB", "4"}};
  }
  Ranks ranks(options, [&](World& world) { return loop_until_error(world, marks, 1 << 16); });
  ASSERT_TRUE(all_run(marks, options.size));
  const std::set<ino_t> inodes = shm_inodes(ranks, options.size);
  if (GetParam().files_in_dev_shm) {
    EXPECT_GE(inodes.size(), 4U) << "the ranks' files are elsewhere: nothing is tested";
  }
  // While they run neither: so no time of death can leave one.
  EXPECT_EQ(shm_names(inodes), std::vector<std::string>());
  // Stopped first: none of them sees another's death.
  for (const int signal : {SIGSTOP, SIGKILL}) {
    for (const int rank : GetParam().ranks) {
      ::kill(ranks.pid(rank), signal);
    }
  }
  for (int rank = 0; rank < options.size; ++rank) {
    const bool killed = std::ranges::count(GetParam().ranks, rank) != 0;
    EXPECT_EQ(ranks.wait(rank), killed ? -SIGKILL : 3) << told(marks, rank).text;
  }
  EXPECT_EQ(shm_names(inodes), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Kills, DevShm,
                         ::testing::Values(Kills{"OneMemfd", false, {1}},
                                           Kills{"AllMemfd", false, {0, 1, 2, 3}},
                                           Kills{"OneFile", true, {1}},
                                           Kills{"AllFile", true, {0, 1, 2, 3}}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace isthmus
