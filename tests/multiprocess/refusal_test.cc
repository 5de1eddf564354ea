// Goal: a call that cannot be is refused by every rank, with the reason, and the group stays
// usable. Method: forked ranks that call differently or get no memory; each rank writes the error
// it got into a file of the test's folder, and the parent reads them.

#include <fstream>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/clock.h"
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

// Rank 0 gets no scratch memory.
class ShortOfMemory : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer needs the address space that this takes away";
#endif
  }

  static Ranks::Options options(const std::string& layout) {
    Ranks::Options options;
    options.size = static_cast<int>(layout.size());
    options.node_ids = nodes_of(layout);
    options.timeout_ms = 50'000;
    options.variables = {{"ISTHMUS_ALGO", "gather_all_reduce"}};
    return options;
  }
};

// Rank 0 gets none for two calls, one right after the other, before rank 1 of its node
// looks: it hears of both.
TEST_F(ShortOfMemory, EachOfTwoRefusalsIsHeard) {
  const Marks marks;
  Ranks ranks(options("aab"), [&](World& world) {
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

// Rank 0 gets none for its part: both ranks are refused, and a smaller call still
// runs.
TEST_F(ShortOfMemory, ScratchThatTheSystemDoesNotGiveIsRefusedByEveryRank) {
  const Marks marks;
  Ranks ranks(options("ab"), [&](World& world) {
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

}  // namespace
}  // namespace isthmus
