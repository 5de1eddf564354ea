// Goal: nodes, local indexes and restriction of Topology agree with their contract. Method: small
// hand-made groups, and every contiguous sub-group of an interleaved one against a direct count.

#include "topology/topology.h"

#include <algorithm>
#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace isthmus {
namespace {

TEST(TopologyTest, NumbersNodesByTheirLowestRank) {
  const Topology topology = Topology::make(std::array{7, 3, 7, 3, 9}).value();
  EXPECT_EQ(topology.ranks(), 5);
  EXPECT_EQ(topology.nodes(), 3);
  EXPECT_EQ(topology.node_of(0), 0);
  EXPECT_EQ(topology.node_of(1), 1);
  EXPECT_EQ(topology.node_of(4), 2);
  EXPECT_EQ(topology.local_of(2), 1);
  EXPECT_EQ(topology.local_of(3), 1);
  EXPECT_EQ(topology.members(1)[1], 3);
  EXPECT_EQ(topology.locals_min(), 1);
  EXPECT_EQ(topology.locals_max(), 2);
  EXPECT_TRUE(topology.mapped_all());
  EXPECT_FALSE(topology.one_mapped_node());
}

TEST(TopologyTest, NodeOfOneRankIsMappedWhateverWasSaid) {
  const Topology topology = Topology::make(std::array{0, 0, 1}, {false, false}).value();
  EXPECT_FALSE(topology.mapped(0));
  EXPECT_TRUE(topology.mapped(1));
  EXPECT_FALSE(topology.mapped_all());
}

TEST(TopologyTest, NodesOfARackAreNeighbours) {
  const Topology topology = Topology::make(std::array{7, 3, 9, 3, 5}, {true, false, true, true},
                                           std::array{1, 2, 1, 2, 2})
                                .value();
  EXPECT_EQ(topology.racks(), 2);
  EXPECT_EQ(topology.node_of(0), 0);
  EXPECT_EQ(topology.node_of(2), 1);
  EXPECT_EQ(topology.node_of(1), 2);
  EXPECT_EQ(topology.node_of(4), 3);
  EXPECT_EQ(topology.rack_begin(1), 2);
  EXPECT_EQ(topology.rack_of_node(1), 0);
  EXPECT_EQ(topology.rack_of_node(2), 1);
  EXPECT_FALSE(topology.mapped(2));
  EXPECT_TRUE(topology.mapped(3));
  EXPECT_EQ(topology.members(2)[1], 3);
  EXPECT_EQ(Topology::grid(5, 2).racks(), 1);
  EXPECT_EQ(Topology::grid(5, 2, 5), Topology::grid(5, 2));
  const Topology uneven = Topology::grid(5, 2, 3);
  EXPECT_EQ(uneven.rack_nodes_min(), 2);
  EXPECT_EQ(uneven.rack_nodes_max(), 3);
  const Topology part = uneven.restricted_to(std::array{9, 0, 8, 1, 6}).value();
  EXPECT_EQ(part.racks(), 2);
  EXPECT_EQ(part.nodes_of_rack(0), 2);
  EXPECT_EQ(part.node_of(4), 1);
  EXPECT_EQ(uneven.restricted_to(std::array{2, 4}).value().racks(), 1);
}

TEST(TopologyTest, RefusesNonsense) {
  EXPECT_EQ(Topology::make(std::array{0, 0}, {}, std::array{1}).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(Topology::make(std::array{0, 0}, {}, std::array{1, 2}).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(Topology::make(std::vector<int>{}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(Topology::make(std::array{0, 1}, {true}).error().code, Code::kInvalidArgument);
  const Topology topology = Topology::grid(2, 2);
  EXPECT_FALSE(topology.restricted_to(std::array{0, 4}).ok());
  EXPECT_FALSE(topology.restricted_to(std::array{0, -1}).ok());
  EXPECT_FALSE(topology.restricted_to(std::array{1, 1}).ok());
  EXPECT_FALSE(topology.restricted_to(std::vector<int>{}).ok());
}

TEST(TopologyTest, RestrictionKeepsTheGroupsOrder) {
  const Topology world = Topology::grid(2, 4);
  const Topology lane = world.restricted_to(std::array{1, 5}).value();
  EXPECT_EQ(lane.nodes(), 2);
  EXPECT_EQ(lane.locals_max(), 1);
  const Topology shard = world.restricted_to(std::array{6, 5, 4}).value();
  EXPECT_TRUE(shard.one_mapped_node());
  EXPECT_EQ(shard.local_of(0), 0);
  const Topology mixed = world.restricted_to(std::array{4, 0, 5}).value();
  EXPECT_EQ(mixed.node_of(0), 0);
  EXPECT_EQ(mixed.node_of(1), 1);
  EXPECT_EQ(mixed.local_of(2), 1);
}

TEST(TopologyTest, RestrictionKeepsMappingAndLinks) {
  Topology world = Topology::make(std::array{0, 1, 0, 1, 1}, {true, false}).value();
  world.set_links({1.0, 2.0}, {3.0, 4.0}, 5.0);
  world.set_across({7.0, 8.0});
  for (int first = 0; first < 5; ++first) {
    for (int last = first; last < 5; ++last) {
      std::vector<int> group;
      for (int rank = first; rank <= last; ++rank) {
        group.push_back(rank);
      }
      const Topology part = world.restricted_to(group).value();
      const auto odd = std::count_if(group.begin(), group.end(),
                                     [&](int rank) { return world.node_of(rank) == 1; });
      EXPECT_EQ(part.mapped_all(), odd <= 1) << first << ".." << last;
      EXPECT_EQ(part.between().alpha_us, 3.0);
      EXPECT_EQ(part.across().alpha_us, 7.0);
      EXPECT_EQ(part.gamma_us_per_mib(), 5.0);
    }
  }
}

}  // namespace
}  // namespace isthmus
