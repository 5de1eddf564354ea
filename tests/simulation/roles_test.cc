// Goal: ranks that do the same are simulated once with the same result, to the last bit, as if all
// were; ranks that do not are told apart. Method: every algorithm of the table on even, uneven and
// scattered groups, small, odd and large sizes, both deliveries, folded against unfolded.

#include "schedule/roles.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/algorithms/algorithm.h"
#include "schedule/builder.h"
#include "schedule/simulate.h"

namespace isthmus {
namespace {

Topology timed(Topology topology) {
  topology.set_links({1.0, 100.0}, {10.0, 1000.0}, 50.0);
  topology.set_across({20.0, 1500.0});
  return topology;
}

std::vector<Topology> topologies() {
  return {timed(Topology::grid(1, 5)),
          timed(Topology::grid(4, 1)),
          timed(Topology::grid(2, 2)),
          timed(Topology::grid(8, 3)),
          timed(Topology::grid(6, 4)),
          timed(Topology::grid(16, 4)),
          timed(Topology::grid(8, 2, 2)),
          timed(Topology::grid(12, 2, 4)),
          timed(Topology::grid(6, 3, 4)),
          timed(Topology::make(std::vector<int>{0, 0, 0, 1, 1}).value()),
          timed(Topology::make(std::vector<int>{0, 1, 2, 0, 1, 0}).value())};
}

// All ranks' schedules, and the same made one at a time.
struct Case {
  const Algorithm* algorithm;
  Topology topology;
  std::size_t bytes;
  Tuning tuning;

  Result<Schedule> build(std::uint32_t rank) const {
    return algorithm->build({topology, rank, 0, tuning});
  }
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Topology& topology : topologies()) {
    for (const Algorithm& algorithm : algorithms()) {
      for (const std::size_t bytes : {std::size_t{8}, std::size_t{100000}, std::size_t{1} << 20}) {
        const Payload payload = {.bytes = bytes, .mapped = true};
        if (algorithm.applicable(topology, payload)) {
          out.push_back({&algorithm, topology, bytes, algorithm.tune(topology, payload)});
        }
      }
    }
  }
  return out;
}

TEST(RolesTest, FoldedIsUnfoldedToTheLastBit) {
  std::size_t folded_ranks = 0;
  std::size_t all_ranks = 0;
  for (const Case& one : cases()) {
    std::vector<Schedule> schedules;
    for (int rank = 0; rank < one.topology.ranks(); ++rank) {
      schedules.push_back(one.build(static_cast<std::uint32_t>(rank)).value());
    }
    for (const Delivery delivery : {Delivery::kEager, Delivery::kRendezvous}) {
      SimulateOptions options;
      options.delivery = delivery;
      const Simulation all = simulate(schedules, one.topology, one.bytes, options).value();
      const Result<Simulation> folded = simulate(
          [&](std::uint32_t rank) { return one.build(rank); }, one.topology, one.bytes, options);
      const std::string where = std::string(one.algorithm->name) + " on " +
                                std::to_string(one.topology.nodes()) + " nodes, " +
                                std::to_string(one.topology.ranks()) + " ranks, " +
                                std::to_string(one.bytes) + " bytes";
      ASSERT_TRUE(folded.ok()) << where << ": " << folded.error().message;
      ASSERT_EQ(folded->makespan_us, all.makespan_us) << where;
      ASSERT_EQ(folded->end_us, all.end_us) << where;
      ASSERT_EQ(folded->neck_busy_us, all.neck_busy_us) << where;
      ASSERT_EQ(folded->neck_out, all.neck_out) << where;
      ASSERT_EQ(folded->rack_busy_us, all.rack_busy_us) << where;
      ASSERT_EQ(folded->rack_out, all.rack_out) << where;
      ASSERT_LE(folded->roles, all.roles) << where;
      folded_ranks += folded->roles;
      all_ranks += all.roles;
    }
  }
  std::printf("%zu ranks in %zu roles\n", all_ranks, folded_ranks);
  EXPECT_LT(folded_ranks, all_ranks);
}

// A power of two of nodes: they all do the same.
TEST(RolesTest, EqualNodesAreOne) {
  const Topology topology = timed(Topology::grid(64, 4));
  const Payload payload = {.bytes = std::size_t{8} << 20};
  const Algorithm* algorithm = find_algorithm(OpKind::kAllReduce, "halving_lanes_all_reduce");
  ASSERT_NE(algorithm, nullptr);
  const Case one = {algorithm, topology, payload.bytes, algorithm->tune(topology, payload)};
  const Result<Roles> roles =
      Roles::fold([&](std::uint32_t rank) { return one.build(rank); }, topology, payload.bytes);
  ASSERT_TRUE(roles.ok()) << roles.error().message;
  EXPECT_EQ(roles->count(), 4U);
  EXPECT_EQ(roles->locals.size(), 1U);

  // In racks the nodes of one are apart, but racks are alike.
  const Topology racked = timed(Topology::grid(64, 4, 8));
  const Case other = {algorithm, racked, payload.bytes, algorithm->tune(racked, payload)};
  const Result<Roles> in_racks =
      Roles::fold([&](std::uint32_t rank) { return other.build(rank); }, racked, payload.bytes);
  ASSERT_TRUE(in_racks.ok()) << in_racks.error().message;
  EXPECT_EQ(in_racks->count(), 32U);
  EXPECT_EQ(in_racks->of_rack, std::vector<std::uint32_t>(8, 0));
}

// Two ranks swap a message each; a third has nobody to take its.
TEST(RolesTest, AMessageNeedsTwoEnds) {
  const Topology topology = timed(Topology::grid(3, 1));
  const ScheduleSource source = [](std::uint32_t rank) {
    Builder b({.op = OpKind::kAllReduce,
               .rank = rank,
               .ranks = 3,
               .algorithm = "by_hand",
               .partition = {}});
    b.signal(rank == 0 ? 1 : 0);
    if (rank < 2) {
      b.wait_signal(1 - rank);
    }
    return b.build();
  };
  EXPECT_EQ(simulate(source, topology, 0).error().code, Code::kInternal);
}

}  // namespace
}  // namespace isthmus
