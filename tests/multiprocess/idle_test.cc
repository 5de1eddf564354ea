// Goal: ranks that have nothing to do leave the processors alone: while they wait for one that
// computes, and between operations, with the driver's thread parked. Method: forked ranks measure
// their own processor time (getrusage) while one rank works for seconds; the bound is generous, for
// a machine that is busy with something else.

#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::Ranks;

constexpr std::int64_t kWorkNs = 2'000'000'000;

// Of one processor, in percent. The design asks for 1 on a quiet machine.
constexpr double kMostPercent = 5.0;

std::int64_t used_ns() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) {
    return 0;
  }
  const auto ns = [](const timeval& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + std::int64_t{time.tv_usec} * 1000;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

// What an application does between two collectives.
void compute() {
  const std::int64_t end = monotonic_ns() + kWorkNs;
  while (monotonic_ns() < end) {
  }
}

// 0 when `wait` took time but hardly any of the processor's.
int expect_idle(int rank, const std::function<bool()>& wait) {
  const std::int64_t began_ns = monotonic_ns();
  const std::int64_t used_before_ns = used_ns();
  if (!wait()) {
    return 1;
  }
  const double took = static_cast<double>(monotonic_ns() - began_ns);
  const double percent = 100.0 * static_cast<double>(used_ns() - used_before_ns) / took;
  std::printf("rank %d waited %.0f ms and used %.2f %% of a processor\n", rank, took / 1e6,
              percent);
  std::fflush(stdout);
  return took > static_cast<double>(kWorkNs) / 2 && percent < kMostPercent ? 0 : 2;
}

class Idle : public ::testing::TestWithParam<int> {
 protected:
  static void expect_all(const Ranks::Body& body, std::vector<std::string> nodes = {}) {
    Ranks::Options options;
    options.size = GetParam();
    options.node_ids = std::move(nodes);
    Ranks ranks(options, body);
    for (const int code : ranks.wait_all()) {
      EXPECT_EQ(code, 0);
    }
  }

  static int wait_in_all_reduce(World& world) {
    float value = 1.0F;
    const auto sum = [&] {
      const Status done =
          world.communicator().all_reduce(&value, &value, 1, DType::kFloat32, RedOp::kSum);
      return done.ok();
    };
    if (!sum()) {
      return 1;
    }
    if (world.rank() != 0) {
      return expect_idle(world.rank(), sum);
    }
    compute();
    return sum() ? 0 : 1;
  }
};

TEST_P(Idle, WhileTheyWaitForOneThatComputes) {
  expect_all(&wait_in_all_reduce);
}

TEST_P(Idle, WhileTheyWaitForOneOfAnotherNode) {
  std::vector<std::string> nodes(static_cast<std::size_t>(GetParam()), "a");
  nodes[0] = "b";
  expect_all(&wait_in_all_reduce, nodes);
}

TEST_P(Idle, BetweenOperations) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  expect_all([&](World& world) {
    // An asynchronous operation, so that there is a driver.
    float value = 1.0F;
    Result<WorkRef> work = world.communicator().start(
        {OpKind::kAllReduce, DType::kFloat32, RedOp::kSum, 0, &value, &value, 1});
    if (!work.ok() || !(*work)->wait(Deadline::after_ms(20'000)).ok()) {
      return 1;
    }
    if (world.rank() == 0) {
      compute();
      const std::string one_each(static_cast<std::size_t>(world.size()) - 1, '.');
      return ::write(pipe[1], one_each.data(), one_each.size()) > 0 ? 0 : 1;
    }
    char mine = 0;
    return expect_idle(world.rank(), [&] { return ::read(pipe[0], &mine, 1) == 1; });
  });
  ::close(pipe[0]);
  ::close(pipe[1]);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Idle, ::testing::Values(2, 4),
                         [](const auto& tested) { return std::to_string(tested.param) + "Ranks"; });

}  // namespace
}  // namespace isthmus
