// Goal: no byte crosses between racks more often than it must, and knowing the racks pays where
// their links are narrow. Method: the bytes of all ranks' schedules are counted against the least
// that each operation can do with, on even, uneven and scattered racks; a table of simulated times
// with and without that knowledge.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/select.h"
#include "schedule/cost.h"
#include "schedule/simulate.h"
#include "tests/simulation/schedules.h"

namespace isthmus {
namespace {

std::vector<Topology> topologies() {
  return {Topology::grid(4, 2, 2),
          Topology::grid(16, 2, 4),
          Topology::grid(6, 3, 2),
          Topology::grid(7, 2, 3),
          Topology::grid(5, 1, 4),
          Topology::make(std::vector<int>{0, 1, 2, 3, 0, 1, 4, 2, 2, 5}, {},
                         std::vector<int>{0, 1, 1, 0, 0, 1, 0, 1, 1, 2})
              .value()};
}

GroupCost cost_of(std::string_view name, OpKind op, const Topology& topology, std::size_t bytes,
                  std::uint32_t root = 0) {
  const Algorithm* algorithm = find_algorithm(op, name);
  EXPECT_NE(algorithm, nullptr) << name;
  const std::vector<Schedule> schedules =
      build_all(*algorithm, topology, root, algorithm->tune(topology, {.bytes = bytes}));
  return cost_of(schedules, topology, bytes);
}

std::size_t ranks_in(const Topology& topology, int rack) {
  std::size_t ranks = 0;
  for (int node = topology.rack_begin(rack); node < topology.rack_begin(rack + 1); ++node) {
    ranks += static_cast<std::size_t>(topology.locals(node));
  }
  return ranks;
}

// All of it for each other rack's part of the sums, there and back.
TEST(RacksTest, AllReduceSendsTwoSharesOfTheOtherRacks) {
  constexpr std::size_t kBytes = std::size_t{5} << 20;
  for (const Topology& topology : topologies()) {
    const auto racks = static_cast<std::size_t>(topology.racks());
    const GroupCost cost = cost_of("lanes_all_reduce", OpKind::kAllReduce, topology, kBytes);
    for (std::size_t rack = 0; rack < racks; ++rack) {
      // Parts are whole cache lines: not all of one length.
      const double least =
          2.0 * kBytes * static_cast<double>(racks - 1) / static_cast<double>(racks);
      EXPECT_NEAR(static_cast<double>(cost.rack_out[rack]), least, 0.01 * kBytes)
          << racks << " racks";
      EXPECT_NEAR(static_cast<double>(cost.rack_in[rack]), least, 0.01 * kBytes)
          << racks << " racks";
    }
  }
  for (const Topology& topology : {Topology::grid(4, 2, 2), Topology::grid(16, 2, 4)}) {
    const double racks = topology.racks();
    for (const std::size_t out :
         cost_of("halving_lanes_all_reduce", OpKind::kAllReduce, topology, kBytes).rack_out) {
      EXPECT_NEAR(static_cast<double>(out), 2.0 * kBytes * (racks - 1) / racks, 0.01 * kBytes);
    }
  }
}

TEST(RacksTest, EachBlockEntersARackOnceAndOneSumLeavesIt) {
  constexpr std::size_t kBlock = 100000;
  for (const Topology& topology : topologies()) {
    const GroupCost gather = cost_of("two_level_all_gather", OpKind::kAllGather, topology, kBlock);
    const GroupCost scatter =
        cost_of("two_level_reduce_scatter", OpKind::kReduceScatter, topology, kBlock);
    const auto ranks = static_cast<std::size_t>(topology.ranks());
    const auto racks = static_cast<std::size_t>(topology.racks());
    for (int rack = 0; rack < topology.racks(); ++rack) {
      const std::size_t own = ranks_in(topology, rack);
      const auto at = static_cast<std::size_t>(rack);
      EXPECT_EQ(gather.rack_in[at], (ranks - own) * kBlock);
      EXPECT_EQ(gather.rack_out[at], own * (racks - 1) * kBlock);
      EXPECT_EQ(scatter.rack_out[at], (ranks - own) * kBlock);
      EXPECT_EQ(scatter.rack_in[at], own * (racks - 1) * kBlock);
    }
  }
}

TEST(RacksTest, ARootsDataEntersEveryOtherRackOnce) {
  constexpr std::size_t kBytes = 1000000;
  for (const Topology& topology : topologies()) {
    for (int root = 0; root < topology.ranks(); ++root) {
      const int home = topology.rack_of_node(topology.node_of(root));
      for (const auto& [name, op] : {std::pair{"two_level_tree_broadcast", OpKind::kBroadcast},
                                     std::pair{"two_level_chain_broadcast", OpKind::kBroadcast},
                                     std::pair{"two_level_tree_reduce", OpKind::kReduce},
                                     std::pair{"two_level_direct_reduce", OpKind::kReduce}}) {
        const GroupCost cost =
            cost_of(name, op, topology, kBytes, static_cast<std::uint32_t>(root));
        for (int rack = 0; rack < topology.racks(); ++rack) {
          // Sums go the other way.
          const auto& once = op == OpKind::kBroadcast ? cost.rack_in : cost.rack_out;
          EXPECT_EQ(once[static_cast<std::size_t>(rack)], rack == home ? 0 : kBytes)
              << name << ", root " << root;
        }
      }
    }
  }
}

// 4 racks x 4 nodes x 2 ranks, 10 Gbit/s a node, as much a rack: what is picked, timed on these
// links, by whether it knows of racks.
TEST(RacksTest, KnowingThemPays) {
  Topology topology = Topology::grid(16, 2, 4);
  topology.set_across({40.0, 840.0});
  const Topology blind = Topology::grid(16, 2);
  std::printf("MiB  blind             us  aware             us\n");
  for (const OpKind op :
       {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kBroadcast}) {
    for (std::size_t mib = 1; mib <= 64; mib *= 4) {
      const std::size_t bytes = op == OpKind::kAllReduce || op == OpKind::kBroadcast
                                    ? mib << 20
                                    : (mib << 20) / static_cast<std::size_t>(topology.ranks());
      double us[2] = {};
      std::string_view names[2];
      for (const bool aware : {false, true}) {
        const Topology& known = aware ? topology : blind;
        const Choice choice = select_algorithm(known, op, {.bytes = bytes}, "").value();
        names[aware] = choice.algorithm->name;
        us[aware] = simulate(build_all(*choice.algorithm, known, 0, choice.tuning), topology, bytes)
                        .value()
                        .makespan_us;
      }
      std::printf("%3zu  %-26s %9.0f  %-26s %9.0f  %.2f\n", mib, names[0].data(), us[0],
                  names[1].data(), us[1], us[0] / us[1]);
      EXPECT_LE(us[true], 1.02 * us[false]) << op_kind_name(op) << " of " << mib << " MiB";
    }
  }
}

}  // namespace
}  // namespace isthmus
