// Goal: every algorithm of the table computes its operation, in place and apart, on small groups.
// Method: run the schedules of all ranks in random interleavings over words (ScheduleExecutor) and
// compare the outputs with the operation's definition.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/algorithms/algorithm.h"
#include "tests/simulation/schedule_executor.h"
#include "tests/simulation/schedules.h"

namespace isthmus {
namespace {

void check(const Algorithm& algorithm, const Topology& topology, std::uint32_t root,
           const Tuning& tuning) {
  const std::vector<Schedule> schedules = build_all(algorithm, topology, root, tuning);
  ASSERT_FALSE(schedules.empty());
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    ScheduleExecutor::Options options;
    options.in_place = seed % 2 == 0;
    options.rendezvous = seed >= 3;
    options.seed = seed;
    ScheduleExecutor executor(schedules, topology, options);
    const std::string what =
        where(algorithm, topology, root, tuning) + ", seed " + std::to_string(seed);
    ASSERT_TRUE(executor.run()) << what << ": " << executor.why();
    ASSERT_TRUE(ScheduleExecutor::right(schedules, executor.outputs())) << what << "\n"
                                                                        << schedules[0].to_string();
  }
}

std::vector<Tuning> tunings() {
  return {{1, 1, 0}, {2, 2, 1}, {8, 2, 1}, {8, 4, 2}, {8, 5, 2}};
}

std::vector<Topology> topologies() {
  std::vector<Topology> result;
  for (int ranks = 1; ranks <= 6; ++ranks) {
    result.push_back(Topology::grid(1, ranks));
    result.push_back(Topology::grid(ranks, 1));
  }
  result.push_back(Topology::grid(2, 2));
  result.push_back(Topology::grid(3, 2));
  result.push_back(Topology::grid(2, 3));
  result.push_back(Topology::grid(4, 2));
  result.push_back(Topology::make(std::vector<int>{0, 0, 0, 1, 1}).value());
  result.push_back(Topology::make(std::vector<int>{0, 1, 2, 0, 1, 0, 0}).value());
  result.push_back(Topology::make(std::vector<int>{0, 0, 1, 1, 1}, {false, true}).value());
  result.push_back(Topology::grid(4, 2, 2));
  result.push_back(Topology::grid(7, 1, 3));
  result.push_back(Topology::make(std::vector<int>{0, 1, 2, 0, 1, 0, 3, 4}, {},
                                  std::vector<int>{0, 1, 1, 0, 1, 0, 0, 2})
                       .value());
  return result;
}

TEST(AlgorithmsTest, ComputeTheirOperation) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const Topology& topology : topologies()) {
      const std::vector<Tuning> wanted =
          has_pieces(algorithm, topology) ? tunings() : std::vector<Tuning>{{}};
      for (const Tuning& tuning : wanted) {
        for (int root = 0; root < topology.ranks(); ++root) {
          if ((root == 0 || op_traits(algorithm.op).rooted) && fits_best(algorithm, topology, 0)) {
            check(algorithm, topology, static_cast<std::uint32_t>(root), tuning);
          }
        }
      }
    }
  }
}

TEST(AlgorithmsTest, TuningsStayInBounds) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const Topology& topology : topologies()) {
      for (std::size_t bytes = 1; bytes <= (1ULL << 36); bytes *= 2) {
        const Payload payload = {bytes, false};
        if (!fits_best(algorithm, topology, bytes)) {
          continue;
        }
        const Tuning tuning = algorithm.tune(topology, payload);
        EXPECT_GE(tuning.pieces, 1U);
        EXPECT_EQ(tuning.pieces & (tuning.pieces - 1), 0U) << algorithm.name;
        EXPECT_GE(tuning.slots, 1U);
        EXPECT_LT(tuning.lead, tuning.slots);
        const Result<Schedule> schedule = algorithm.build({topology, 0, 0, tuning});
        ASSERT_TRUE(schedule.ok()) << schedule.error().message;
      }
    }
  }
}

// A schedule that only one rank cannot build would leave the others waiting.
TEST(AlgorithmsTest, EveryRankCanBuildTheLargest) {
  for (const Topology& topology : {Topology::grid(1, 64), Topology::grid(32, 2),
                                   Topology::grid(64, 1), Topology::grid(4, 16)}) {
    for (const Algorithm& algorithm : algorithms()) {
      const Payload payload = {std::size_t{1} << 40, false};
      if (!fits_best(algorithm, topology, payload.bytes)) {
        continue;
      }
      const Tuning tuning = algorithm.tune(topology, payload);
      const auto last = static_cast<std::uint32_t>(topology.ranks()) - 1;
      for (const std::uint32_t rank : {0U, 1U, last}) {
        const Result<Schedule> schedule = algorithm.build({topology, rank, 0, tuning});
        EXPECT_TRUE(schedule.ok()) << schedule.error().message;
      }
    }
  }
}

TEST(AlgorithmsTest, SizeClassesCoverAllSizes) {
  EXPECT_EQ(size_class(0), 0U);
  EXPECT_EQ(size_class(48), 0U);
  EXPECT_EQ(size_class(49), 1U);
  EXPECT_EQ(size_class(64), 1U);
  EXPECT_EQ(size_class(65), 2U);
  EXPECT_EQ(size_class(8192), size_class(4097));
  EXPECT_LT(size_class(8192), size_class(8193));
  for (std::size_t bytes = 1; bytes < (1U << 20); bytes += 61) {
    const std::uint32_t index = size_class(bytes);
    EXPECT_GE(size_class_bytes(index), bytes);
    EXPECT_EQ(size_class(size_class_bytes(index)), index);
  }
}

}  // namespace
}  // namespace isthmus
