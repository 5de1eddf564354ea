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
#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::Ranks;

constexpr std::int64_t kNsPerMs = 1'000'000;

// Where ranks leave marks for the parent and for each other; made before the fork. Each process
// opens its own store in the folder.
class Marks {
 public:
  void put(const std::string& name, const std::string& text) const {
    const Status put = (*FileStore::create(folder_.path()))->set(name, text);
    if (!put.ok()) {
      std::fprintf(stderr, "%s\n", put.error().message.c_str());
    }
  }

  // Empty when there is none.
  std::string get(const std::string& name) const {
    const Result<std::string> text = (*FileStore::create(folder_.path()))->get(name, Deadline(0));
    return text.ok() ? *text : std::string();
  }

  bool wait_for(const std::string& name, std::int64_t at_most_ms = 20'000) const {
    return (*FileStore::create(folder_.path()))->get(name, Deadline::after_ms(at_most_ms)).ok();
  }

 private:
  TempFolder folder_ = TempFolder::create("marks").value();
};

std::string rank_name(int rank) {
  return fmt::format("rank{}", rank);
}

// Loops all_reduce until it fails; marks its start, then "<ms until the error> <text>".
int loop_until_error(World& world, const Marks& marks, std::size_t count) {
  std::vector<float> data(count, 1.0F);
  for (int i = 0;; ++i) {
    if (i == 5) {
      marks.put("running" + std::to_string(world.rank()), "");
    }
    const Status status = world.communicator().all_reduce(data.data(), data.data(), count,
                                                          DType::kFloat32, RedOp::kMax);
    if (!status.ok()) {
      marks.put(rank_name(world.rank()),
                fmt::format("{} {}", monotonic_ns() / kNsPerMs, status.error().message));
      return 3;
    }
  }
}

struct Told {
  std::int64_t at_ms = 0;
  std::string text;
};

Told told(const Marks& marks, int rank) {
  Told out;
  std::istringstream line(marks.get(rank_name(rank)));
  line >> out.at_ms;
  std::getline(line, out.text);
  return out;
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

std::vector<std::string> nodes_of(const std::string& layout) {
  std::vector<std::string> out;
  for (const char node : layout) {
    out.emplace_back(1, node);
  }
  return out;
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
    EXPECT_NE(error.text.find("rank 3"), std::string::npos) << error.text;
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

class Mismatch : public ::testing::TestWithParam<std::string> {};

TEST_P(Mismatch, IsRefusedWithBothSidesAndTheGroupStaysUsable) {
  const Marks marks;
  Ranks::Options options;
  options.size = 4;
  options.node_ids = nodes_of(GetParam());
  Ranks ranks(options, [&](World& world) {
    Communicator& group = world.communicator();
    std::vector<float> data(2000, 1.0F);
    std::string texts;
    const auto expect_refused = [&](const Call& call) {
      const Status status = group.run(call);
      texts += status.ok() ? std::string("no error\n") : status.error().message + "\n";
      return !status.ok() && status.error().code == Code::kMismatch;
    };
    const bool odd = world.rank() == 0;
    Call call{OpKind::kAllReduce, DType::kFloat32, RedOp::kSum, 0, data.data(), data.data(), 1000};
    call.count = odd ? 1001 : 1000;
    bool refused = expect_refused(call);
    call.count = 1000;
    call.dtype = odd ? DType::kInt32 : DType::kFloat32;
    refused = expect_refused(call) && refused;
    call.dtype = DType::kFloat32;
    call.red_op = odd ? RedOp::kMax : RedOp::kSum;
    refused = expect_refused(call) && refused;
    call.op = odd ? OpKind::kBarrier : OpKind::kAllReduce;
    refused = expect_refused(call) && refused;
    for (const float value : data) {
      refused = refused && value == 1.0F;
    }
    marks.put(rank_name(world.rank()), texts);
    float one = 1.0F;
    const Status after = group.all_reduce(&one, &one, 1, DType::kFloat32, RedOp::kSum);
    if (!after.ok()) {
      marks.put("after" + std::to_string(world.rank()), after.error().message);
    }
    return refused && after.ok() && one == 4.0F ? 0 : 1;
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ranks.wait(rank), 0)
        << marks.get(rank_name(rank)) << marks.get("after" + std::to_string(rank));
    const std::string texts = marks.get(rank_name(rank));
    EXPECT_NE(texts.find("rank 0"), std::string::npos) << texts;
    EXPECT_NE(texts.find("[1001]"), std::string::npos) << texts;
    EXPECT_NE(texts.find("[1000]"), std::string::npos) << texts;
    EXPECT_NE(texts.find("int32"), std::string::npos) << texts;
    EXPECT_NE(texts.find("MAX"), std::string::npos) << texts;
    EXPECT_NE(texts.find("barrier"), std::string::npos) << texts;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Mismatch, ::testing::Values("aaaa", "aabb", "abcd"),
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

class Lengths : public ::testing::TestWithParam<std::string> {};

// Rank 0 sends four elements to rank 1, which takes three and names both. Rank 0 may be done then.
TEST_P(Lengths, OfOneMessageAreNamedWhereTheCallsAgree) {
  const Marks marks;
  Ranks::Options options;
  options.size = 2;
  options.node_ids = nodes_of(GetParam());
  Ranks ranks(options, [&](World& world) {
    const std::vector<std::size_t> to = {2, world.rank() == 0 ? 4U : 2U};
    const std::vector<std::size_t> from = {world.rank() == 0 ? 2U : 3U, 2};
    std::vector<float> input(6, 1.0F);
    std::vector<float> output(6);
    Call call{OpKind::kAllToAll, DType::kFloat32, RedOp::kSum, 0, input.data(), output.data(), 0};
    call.counts = to;
    call.output_counts = from;
    const Status status = world.communicator().run(call);
    marks.put(rank_name(world.rank()), "0 " + (status.ok() ? "" : status.error().message));
    const bool usable = world.communicator().barrier().ok();
    const bool refused = !status.ok() && status.error().code == Code::kMismatch;
    return usable && (refused || (status.ok() && world.rank() == 0)) ? 0 : 1;
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(ranks.wait(rank), 0);
    const std::string text = told(marks, rank).text;
    if (rank == 0 && text.size() < 2) {
      continue;
    }
    EXPECT_NE(text.find("12 bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_EQ(text.find("before data moved"), std::string::npos) << text;
    EXPECT_TRUE(rank == 0 || text.find("16 bytes") != std::string::npos) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Lengths, ::testing::Values("aa", "ab"),
                         [](const auto& tested) { return tested.param; });

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

class Staging : public ::testing::TestWithParam<std::string> {};

// Each rank is refused at once, not at the time limit, and alike; smaller operations still run.
TEST_P(Staging, WhatNeverFitsIsRefusedByEveryRank) {
  const Marks marks;
  Ranks::Options options;
  options.size = static_cast<int>(GetParam().size());
  options.node_ids = nodes_of(GetParam());
  options.timeout_ms = 50'000;
  options.variables = {{"ISTHMUS_STAGING_MB", "1"}, {"ISTHMUS_ALGO", "lanes_all_reduce"}};
  if (options.node_ids.front() == options.node_ids.back()) {
    options.variables.back().second = "slice_all_reduce";
  }
  Ranks ranks(options, [&](World& world) {
    const std::int64_t begin_ns = monotonic_ns();
    std::vector<float> data(std::size_t{1} << 22, 1.0F);
    const Call call{OpKind::kAllReduce, DType::kFloat32, RedOp::kSum, 0,
                    data.data(),        data.data(),     data.size()};
    const Status refused = world.communicator().run(call);
    Result<WorkRef> work = world.communicator().start(call);
    if (!work.ok()) {
      return 1;
    }
    const Status refused_later = (*work)->wait(Deadline::after_ms(20'000));
    const std::int64_t took_ms = (monotonic_ns() - begin_ns) / kNsPerMs;
    marks.put(rank_name(world.rank()),
              fmt::format("{} {}", took_ms, refused.ok() ? "" : refused.error().message));
    std::vector<float> few(100, 1.0F);
    const Status after = world.communicator().all_reduce(few.data(), few.data(), few.size(),
                                                         DType::kFloat32, RedOp::kSum);
    const bool untouched = data.front() == 1.0F && data.back() == 1.0F;
    return !refused.ok() && refused.error().code == Code::kResource && !refused_later.ok() &&
                   untouched && after.ok() && few.back() == static_cast<float>(world.size())
               ? 0
               : 2;
  });
  for (int rank = 0; rank < options.size; ++rank) {
    EXPECT_EQ(ranks.wait(rank), 0);
    const Told error = told(marks, rank);
    EXPECT_NE(error.text.find("ISTHMUS_STAGING_MB"), std::string::npos) << error.text;
    EXPECT_LT(error.at_ms, 10'000) << error.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Staging, ::testing::Values("aa", "aabb"),
                         [](const auto& tested) { return tested.param; });

// Lets this process map so many bytes more.
bool leave_address_space(std::size_t bytes) {
  rlimit limit{};
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const bool known = ::getrlimit(RLIMIT_AS, &limit) == 0 && pages != 0;
  limit.rlim_cur = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + bytes;
  return known && ::setrlimit(RLIMIT_AS, &limit) == 0;
}

// Rank 0 gets no scratch memory for two calls, one right after the other, before rank 1 of its node
// looks: it hears of both.
TEST(Failure, EachOfTwoRefusalsIsHeard) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space that this takes away";
#endif
  const Marks marks;
  Ranks::Options options;
  options.size = 3;
  options.node_ids = nodes_of("aab");
  options.timeout_ms = 50'000;
  options.variables = {{"ISTHMUS_ALGO", "gather_all_reduce"}};
  Ranks ranks(options, [&](World& world) {
    std::vector<float> data(std::size_t{1} << 23, 1.0F);
    Call call{OpKind::kAllReduce, DType::kFloat32, RedOp::kSum, 0, data.data(), data.data(), 1};
    const auto start = [&](std::size_t count) {
      call.count = count;
      return std::move(world.communicator().start(call)).value();
    };
    // The threads of asynchronous calls are there before memory is short.
    rlimit before{};
    if (!start(1)->wait(Deadline::after_ms(20'000)).ok() ||
        (world.rank() == 1 && !marks.wait_for("refused")) || ::getrlimit(RLIMIT_AS, &before) != 0) {
      return 1;
    }
    if (world.rank() == 0 && !leave_address_space(32 << 20)) {
      return 2;
    }
    const std::int64_t begin_ns = monotonic_ns();
    const std::vector<WorkRef> works = {start(data.size()), start(data.size())};
    if (::setrlimit(RLIMIT_AS, &before) != 0) {
      return 3;
    }
    if (world.rank() == 0) {
      marks.put("refused", "");
    }
    std::string texts;
    int refused = 0;
    for (const WorkRef& work : works) {
      const Status status = work->wait(Deadline::after_ms(20'000));
      refused += !status.ok() && status.error().code == Code::kResource ? 1 : 0;
      texts += status.ok() ? "no error; " : status.error().message + "; ";
    }
    marks.put(rank_name(world.rank()),
              fmt::format("{} {}", (monotonic_ns() - begin_ns) / kNsPerMs, texts));
    return refused == 2 && world.communicator().barrier().ok() ? 0 : 4;
  });
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(ranks.wait(rank), 0);
    const Told error = told(marks, rank);
    EXPECT_LT(error.at_ms, 10'000) << error.text;
    EXPECT_NE(error.text.find("#2"), std::string::npos) << error.text;
    EXPECT_NE(error.text.find("#3"), std::string::npos) << error.text;
    EXPECT_NE(error.text.find("rank 0"), std::string::npos) << error.text;
  }
}

// Rank 0 gets no scratch memory for its part: both ranks are refused, and a smaller call still
// runs.
TEST(Failure, ScratchThatTheSystemDoesNotGiveIsRefusedByEveryRank) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space that this takes away";
#endif
  const Marks marks;
  Ranks::Options options;
  options.size = 2;
  options.node_ids = nodes_of("ab");
  options.timeout_ms = 50'000;
  options.variables = {{"ISTHMUS_ALGO", "gather_all_reduce"}};
  Ranks ranks(options, [&](World& world) {
    std::vector<float> data(std::size_t{1} << 25, 1.0F);
    const Call call{OpKind::kAllReduce, DType::kFloat32, RedOp::kSum, 0,
                    data.data(),        data.data(),     data.size()};
    const std::int64_t begin_ns = monotonic_ns();
    rlimit before{};
    if (::getrlimit(RLIMIT_AS, &before) != 0) {
      return 1;
    }
    if (world.rank() == 0 && !leave_address_space(64 << 20)) {
      return 1;
    }
    const Status refused = world.communicator().run(call);
    if (::setrlimit(RLIMIT_AS, &before) != 0) {
      return 1;
    }
    marks.put(rank_name(world.rank()), fmt::format("{} {}", (monotonic_ns() - begin_ns) / kNsPerMs,
                                                   refused.ok() ? "" : refused.error().message));
    float one = 1.0F;
    const Status after =
        world.communicator().all_reduce(&one, &one, 1, DType::kFloat32, RedOp::kSum);
    return !refused.ok() && refused.error().code == Code::kResource && after.ok() && one == 2.0F
               ? 0
               : 2;
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.wait(rank), 0);
    const Told error = told(marks, rank);
    EXPECT_NE(error.text.find("scratch memory on rank 0"), std::string::npos) << error.text;
    EXPECT_LT(error.at_ms, 10'000) << error.text;
  }
}

// Rank 0 waits in a group that the death does not concern: it goes on to sleep, a millisecond at a
// time, which shows in how often it gave its core away.
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
  EXPECT_GE(told(marks, 0).at_ms, 100);
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
