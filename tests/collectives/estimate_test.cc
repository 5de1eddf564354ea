// Goal: estimates inside a node follow the schedules' own steps: waits and bytes are theirs, parts
// add up, rates go by footprint, and shared processors cost more. Method: compare with full
// schedules over sizes and groups, and with costs chosen to show one part at a time.

#include "collectives/algorithms/estimate.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "schedule/cost.h"

namespace isthmus {
namespace {

constexpr double kMib = 1048576.0;

const Algorithm& named(OpKind op, const char* name) {
  const Algorithm* found = find_algorithm(op, name);
  EXPECT_NE(found, nullptr) << name;
  return found == nullptr ? algorithms().front() : *found;
}

// One part of the costs alone.
NodeCosts nothing() {
  NodeCosts costs;
  costs.flag_us = costs.flag_rank_us = costs.switch_us = costs.look_us = 0.0;
  costs.copy = costs.read = costs.combine = costs.reduce = RateCurve::flat(0.0);
  return costs;
}

TEST(EstimateTest, WaitsAndBytesAreThoseOfTheSchedule) {
  for (const int ranks : {2, 3, 8}) {
    Topology topology = Topology::grid(1, ranks);
    topology.set_pulls(true);
    for (const Algorithm& algorithm : algorithms()) {
      for (std::size_t bytes = 8; bytes <= (std::size_t{64} << 20); bytes *= 8) {
        const Payload payload{.bytes = bytes, .mapped = true};
        if (algorithm.cost_us != nullptr || !algorithm.applicable(topology, payload)) {
          continue;
        }
        const Tuning tuning = algorithm.tune(topology, payload);
        const std::uint32_t last = op_traits(algorithm.op).rooted ? 1 : 0;
        for (std::uint32_t rank = 0; rank <= last; ++rank) {
          const Schedule schedule =
              algorithm.build({.topology = topology, .rank = rank, .tuning = tuning}).value();
          const RankCost whole = cost_of(schedule, topology, bytes);
          EXPECT_EQ(count_awaits(algorithm, topology, tuning, rank), whole.awaits)
              << algorithm.name << ", " << ranks << " ranks, " << bytes << " bytes, rank " << rank;
        }
        if (last == 0) {
          const RankCost whole =
              cost_of(algorithm.build({.topology = topology, .rank = 0, .tuning = tuning}).value(),
                      topology, bytes);
          const Estimate parts = estimate(algorithm, topology, payload);
          // Pieces are whole cache lines: a line more or less for each piece and rank.
          const double slack = 0.001 * whole.core_us() + 200.0 * ranks * 64.0 * ranks / kMib;
          EXPECT_NEAR(parts.copies_us, whole.copy_us, slack) << algorithm.name << ", " << bytes;
          EXPECT_NEAR(parts.reduces_us, whole.reduce_us, slack) << algorithm.name << ", " << bytes;
        }
      }
    }
  }
}

TEST(EstimateTest, EveryPartIsWhatItSays) {
  Topology topology = Topology::grid(1, 4);
  const Payload payload{.bytes = std::size_t{1} << 20};
  NodeCosts costs = nothing();
  costs.reduce = RateCurve::flat(10.0);
  topology.set_node_costs(costs);
  // Everyone reduces three operands besides its own.
  const Estimate flat = estimate(named(OpKind::kAllReduce, "flat_all_reduce"), topology, payload);
  EXPECT_DOUBLE_EQ(flat.reduces_us, 30.0);
  EXPECT_DOUBLE_EQ(flat.total_us(), 30.0);
  costs.combine = RateCurve::flat(1.0);
  topology.set_node_costs(costs);
  EXPECT_DOUBLE_EQ(
      estimate(named(OpKind::kAllReduce, "flat_all_reduce"), topology, payload).total_us(), 31.0);
  costs.combine = RateCurve::flat(0.0);
  topology.set_node_costs(costs);
  // Everyone reduces a quarter.
  const Algorithm& slices = named(OpKind::kAllReduce, "slice_all_reduce");
  EXPECT_DOUBLE_EQ(estimate(slices, topology, payload).reduces_us, 7.5);
  costs = nothing();
  costs.read = RateCurve::flat(8.0);
  topology.set_node_costs(costs);
  EXPECT_DOUBLE_EQ(estimate(slices, topology, payload).copies_us, 6.0);
  costs = nothing();
  costs.flag_us = 2.0;
  costs.flag_rank_us = 0.5;
  topology.set_node_costs(costs);
  const Payload small{.bytes = 8};
  const Algorithm& line = named(OpKind::kAllReduce, "line_all_reduce");
  EXPECT_DOUBLE_EQ(estimate(line, topology, small).flags_us, 3.0);
  EXPECT_DOUBLE_EQ(estimate(line, topology, small).total_us(), 3.0);
}

// Buffers that peers read need no staging; the kernel's copies are not asked for unmeasured.
TEST(EstimateTest, ExposedBuffers) {
  Topology topology = Topology::grid(1, 4);
  topology.set_pulls(true);
  const Payload payload{.bytes = std::size_t{1} << 20, .mapped = true};
  const Algorithm& load = named(OpKind::kAllGather, "load_all_gather");
  const Algorithm& pull = named(OpKind::kAllGather, "pull_all_gather");
  const Algorithm& staged = named(OpKind::kAllGather, "staged_all_gather");
  const double staged_us = estimate(staged, topology, payload).total_us();
  EXPECT_LT(estimate(load, topology, payload).total_us(), staged_us);
  EXPECT_GT(estimate(pull, topology, payload).total_us(), 100.0 * staged_us);
  NodeCosts costs = nothing();
  costs.pull = RateCurve::flat(5.0);
  topology.set_node_costs(costs);
  EXPECT_DOUBLE_EQ(estimate(pull, topology, payload).copies_us, 15.0);
  EXPECT_DOUBLE_EQ(estimate(load, topology, payload).total_us(), 0.0);
  // A slice of a quarter is reduced, and written to the three others.
  costs = nothing();
  costs.copy = RateCurve::flat(4.0);
  topology.set_node_costs(costs);
  EXPECT_DOUBLE_EQ(
      estimate(named(OpKind::kAllReduce, "load_all_reduce"), topology, payload).reduces_us, 3.0);
}

TEST(EstimateTest, RanksThatShareProcessorsWorkInTurn) {
  Topology topology = Topology::grid(1, 4);
  const Payload payload{.bytes = std::size_t{1} << 20};
  const Algorithm& gather = named(OpKind::kAllGather, "staged_all_gather");
  const Algorithm& broadcast = named(OpKind::kBroadcast, "staged_broadcast");
  NodeCosts costs = nothing();
  costs.copy = costs.read = RateCurve::flat(10.0);
  topology.set_node_costs(costs);
  const double free_gather = estimate(gather, topology, payload).copies_us;
  EXPECT_DOUBLE_EQ(free_gather, 50.0);
  // Root and readers at the same time, but for the first piece.
  const double free_broadcast = estimate(broadcast, topology, payload).copies_us;
  EXPECT_GT(free_broadcast, 10.0);
  EXPECT_LT(free_broadcast, 15.0);
  costs.sharing = 2.0;
  topology.set_node_costs(costs);
  EXPECT_DOUBLE_EQ(estimate(gather, topology, payload).copies_us, 2.0 * free_gather);
  // Four copies on two processors.
  EXPECT_DOUBLE_EQ(estimate(broadcast, topology, payload).copies_us, 20.0);
}

TEST(EstimateTest, RatesGoByFootprint) {
  RateCurve curve;
  curve.bytes = {1024.0, 4096.0, 65536.0, 1048576.0};
  curve.us_per_mib = {10.0, 20.0, 40.0, 80.0};
  ASSERT_TRUE(curve.sane());
  EXPECT_DOUBLE_EQ(curve.at(0.0), 10.0);
  EXPECT_DOUBLE_EQ(curve.at(1024.0), 10.0);
  EXPECT_DOUBLE_EQ(curve.at(2048.0), 15.0);
  EXPECT_DOUBLE_EQ(curve.at(4096.0), 20.0);
  EXPECT_DOUBLE_EQ(curve.at(16384.0), 30.0);
  EXPECT_DOUBLE_EQ(curve.at(1e12), 80.0);
  curve.bytes[2] = 4096.0;
  EXPECT_FALSE(curve.sane());
  curve = RateCurve::flat(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(curve.sane());
  EXPECT_TRUE(NodeCosts().sane());
}

TEST(EstimateTest, FootprintIsWhatOneRankTouches) {
  const Topology topology = Topology::grid(1, 4);
  const auto footprint = [&](OpKind op, const char* name, std::size_t bytes) {
    const Algorithm& algorithm = named(op, name);
    const Schedule schedule = algorithm.build({.topology = topology, .tuning = {1, 1, 0}}).value();
    return footprint_of(schedule, Geometry(schedule.partition, bytes));
  };
  EXPECT_EQ(footprint(OpKind::kAllReduce, "flat_all_reduce", 4096), 8192.0);
  EXPECT_EQ(footprint(OpKind::kAllGather, "staged_all_gather", 4096), 5 * 4096.0);
  EXPECT_EQ(footprint(OpKind::kAllToAll, "staged_all_to_all", 4096), 8 * 4096.0);
}

}  // namespace
}  // namespace isthmus
