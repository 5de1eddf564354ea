#pragma once

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// Collectives of several nodes whose ranks share memory within each node: every byte crosses
// between nodes once, and the work inside the nodes goes on meanwhile. Nodes may have different
// sizes.
//
// Progress lines: 0 announcement, 1 pieces staged, 2 pieces read (all_reduce: results shown), 3
// results read (all_gather: "all nodes have started").

// The first rank of each node reduces for its node, exchanges with the other first ranks and shows
// the result: few bytes.
Result<Schedule> leader_all_reduce(const Request& request);

// Chunk by chunk: local rank l reduces slice l within the node, reduces it with its counterparts of
// the other nodes (each node one part of it, sums and parts sent directly), and shows the result.
// One rounding per level. Nodes have as many slices as the smallest has ranks.
Result<Schedule> lanes_all_reduce(const Request& request);

// The same for many nodes: counterparts combine slices two at a time, in log2(nodes) rounds that
// halve or double (Tuning::halvings).
Result<Schedule> halving_lanes_all_reduce(const Request& request);

// Of few bytes: the first ranks double, in log2(nodes) rounds.
Result<Schedule> leader_doubling_all_reduce(const Request& request);

// As lanes_all_reduce, but counterparts exchange whole slices: one step between nodes where the
// other has two, and as many bytes for two nodes.
Result<Schedule> exchange_all_reduce(const Request& request);

// HYBRID_SHARD, ranks and shards placed alike on every node: local rank l reduces shard l within
// the node and exchanges it with its counterparts, whole sums or (halving) two at a time, in
// log2(nodes) rounds, while the next piece is reduced. What crosses between nodes is one shard per
// local rank and counterpart: no byte more than an all_reduce of the shards sends.
Result<Schedule> exchange_reduce_shards(const Request& request);
Result<Schedule> halving_reduce_shards(const Request& request);

// Each block is received once per node, by one rank of it, and read by the others there.
Result<Schedule> two_level_all_gather(const Request& request);

// Each node reduces its operands of a block, and one rank of it sends the sum to the block's owner.
Result<Schedule> two_level_reduce_scatter(const Request& request);

// One rank per node receives, by a binomial tree or a chain of nodes, and the others read.
Result<Schedule> two_level_tree_broadcast(const Request& request);
Result<Schedule> two_level_chain_broadcast(const Request& request);

// Each node reduces its operands; the sums go up a binomial tree of nodes, or all to the root.
Result<Schedule> two_level_tree_reduce(const Request& request);
Result<Schedule> two_level_direct_reduce(const Request& request);

Result<Schedule> two_level_barrier(const Request& request);

// reduce_units: none of the operands is this rank's input.
inline constexpr std::uint32_t kNoOwnOperand = 0xffffffffU;

// The request's place among nodes, in the types of steps. For the algorithms above.
class Nodes {
 public:
  explicit Nodes(const Request& request)
      : topology_(request.topology),
        node_(static_cast<std::uint32_t>(topology_.node_of(static_cast<int>(request.rank)))) {}

  std::uint32_t count() const { return static_cast<std::uint32_t>(topology_.nodes()); }

  std::uint32_t own() const { return node_; }

  std::uint32_t racks() const { return static_cast<std::uint32_t>(topology_.racks()); }

  std::uint32_t rack_of(std::uint32_t node) const {
    return static_cast<std::uint32_t>(topology_.rack_of_node(static_cast<int>(node)));
  }

  std::uint32_t own_rack() const { return rack_of(node_); }

  std::uint32_t rack_begin(std::uint32_t rack) const {
    return static_cast<std::uint32_t>(topology_.rack_begin(static_cast<int>(rack)));
  }

  std::uint32_t nodes_of_rack(std::uint32_t rack) const {
    return static_cast<std::uint32_t>(topology_.nodes_of_rack(static_cast<int>(rack)));
  }

  std::uint32_t rack_nodes_min() const {
    return static_cast<std::uint32_t>(topology_.rack_nodes_min());
  }

  // A node's index in its rack.
  std::uint32_t place_of(std::uint32_t node) const { return node - rack_begin(rack_of(node)); }

  std::uint32_t place() const { return place_of(node_); }

  std::uint32_t locals(std::uint32_t node) const {
    return static_cast<std::uint32_t>(topology_.locals(static_cast<int>(node)));
  }

  std::uint32_t locals_min() const { return static_cast<std::uint32_t>(topology_.locals_min()); }

  std::uint32_t node_of(std::uint32_t rank) const {
    return static_cast<std::uint32_t>(topology_.node_of(static_cast<int>(rank)));
  }

  std::uint32_t local_of(std::uint32_t rank) const {
    return static_cast<std::uint32_t>(topology_.local_of(static_cast<int>(rank)));
  }

  std::uint32_t rank_at(std::uint32_t node, std::uint32_t local) const {
    return static_cast<std::uint32_t>(topology_.members(static_cast<int>(node))[local]);
  }

  // The local rank of `node` that handles what belongs to `rank` of another node.
  std::uint32_t carrier(std::uint32_t node, std::uint32_t rank) const {
    return local_of(rank) % locals(node);
  }

  // The node by which data of `rank` and sums for it pass on their way between that rank and
  // `node`, so that they cross between racks once: one of the other rack's, or the rank's own.
  std::uint32_t by_way_of(std::uint32_t node, std::uint32_t rank) const {
    const std::uint32_t home = node_of(rank);
    const std::uint32_t rack = rack_of(node);
    const std::uint32_t gate = rack_begin(rack) + place_of(home) % nodes_of_rack(rack);
    return rack == rack_of(home) || node == gate ? home : gate;
  }

  // The rank that is `rank` itself on its own node, else its carrier.
  std::uint32_t stand_in(std::uint32_t node, std::uint32_t rank) const {
    return node == node_of(rank) ? rank : rank_at(node, carrier(node, rank));
  }

  // The node `steps` after this rank's, in a circle.
  std::uint32_t after(std::uint32_t steps) const { return (node_ + steps) % count(); }

  // Signals between the nodes' first ranks, of which this rank is one, after which it knows that
  // every rank of every node has started: it has awaited its own node's announcements before.
  void disseminate(Builder& b) const;

 private:
  const Topology& topology_;
  std::uint32_t node_;
};

}  // namespace isthmus
