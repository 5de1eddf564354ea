#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "topology/node_costs.h"

namespace isthmus {

// What moving bytes costs: alpha microseconds a message, beta microseconds a MiB.
struct LinkClass {
  double alpha_us = 0.0;
  double beta_us_per_mib = 0.0;

  bool operator==(const LinkClass&) const = default;
};

// Which ranks of a group share a node, which nodes share a rack, and what links cost: besides
// sizes, all that algorithms see. A node is a set of ranks; `mapped` says that its ranks see each
// other's shared memory. A rack is a set of nodes (of a switch, a block) whose link to the other
// racks is narrower than those of its nodes together; where nothing is known all nodes are one
// rack. Plain immutable values: any thread. Ranks are group ranks, dense from 0. TopologyFile keeps
// one.
class Topology {
 public:
  // Most ranks of a group; simulations go up to here.
  static constexpr int kRanksMax = 1 << 20;

  // Between nodes, until something was measured: 10 Gbit/s TCP. Racks have no more between them.
  static constexpr LinkClass kBetweenDefault = {30.0, 840.0};

  // The footprint for which inside() and gamma_us_per_mib() speak: a few MiB, from the L3 cache.
  static constexpr double kInsideFootprint = 8388608.0;

  Topology() = default;

  // node_of[r] is any number that is equal for ranks of one node: nodes are numbered anew in order
  // of their lowest rank. Empty `mapped`: every node of two and more ranks shares memory, else one
  // entry per node in that order. rack_of[r] is the same for racks, empty for one rack: nodes are
  // then numbered rack by rack, racks in order of their lowest rank. Fails with kInvalidArgument on
  // no or too many ranks, a wrong length, or a node in two racks.
  static Result<Topology> make(std::span<const int> node_of, const std::vector<bool>& mapped = {},
                               std::span<const int> rack_of = {});

  // nodes x locals ranks, node by node, all mapped; in racks of so many nodes, the last of which
  // may be smaller (0: one rack).
  static Topology grid(int nodes, int locals, int nodes_per_rack = 0);

  int ranks() const { return static_cast<int>(node_of_.size()); }

  int nodes() const { return static_cast<int>(members_.size()); }

  int node_of(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }

  // Index of a rank among the members of its node.
  int local_of(int rank) const { return local_of_[static_cast<std::size_t>(rank)]; }

  // Ranks of a node, ascending.
  std::span<const int> members(int node) const { return members_[static_cast<std::size_t>(node)]; }

  int locals(int node) const { return static_cast<int>(members(node).size()); }

  // Ranks of this rank's node.
  int locals_of(int rank) const { return locals(node_of(rank)); }

  // A node of one rank counts as mapped: it has nobody to share with.
  bool mapped(int node) const { return mapped_[static_cast<std::size_t>(node)]; }

  // Every node is mapped.
  bool mapped_all() const { return mapped_all_; }

  // One node, mapped: collectives need no message.
  bool one_mapped_node() const { return nodes() == 1 && mapped_all_; }

  // Whether every rank can copy from every other one's memory. Of one node only.
  bool pulls() const { return pulls_; }

  void set_pulls(bool pulls) { pulls_ = pulls; }

  int locals_min() const { return locals_min_; }

  int locals_max() const { return locals_max_; }

  int racks() const { return static_cast<int>(rack_begin_.size()) - 1; }

  int rack_of_node(int node) const { return rack_of_node_[static_cast<std::size_t>(node)]; }

  // The nodes of a rack are neighbours: [rack_begin(p), rack_begin(p + 1)).
  int rack_begin(int rack) const { return rack_begin_[static_cast<std::size_t>(rack)]; }

  int nodes_of_rack(int rack) const { return rack_begin(rack + 1) - rack_begin(rack); }

  int rack_nodes_min() const { return rack_nodes_min_; }

  int rack_nodes_max() const { return rack_nodes_max_; }

  // Work inside a node, by footprint.
  const NodeCosts& node_costs() const { return node_costs_; }

  void set_node_costs(const NodeCosts& costs) { node_costs_ = costs; }

  // The same in two numbers and one, for closed forms of several nodes.
  LinkClass inside() const {
    return {node_costs_.wait_us(2), node_costs_.read.at(kInsideFootprint) * node_costs_.sharing};
  }

  // A message to another node, and a MiB on its node's way out or in.
  const LinkClass& between() const { return between_; }

  // A message to another rack, and a MiB on its rack's way out or in, which its nodes share.
  const LinkClass& across() const { return across_; }

  double gamma_us_per_mib() const {
    // Half the fixed part: closed forms count it with each of two and more operands.
    return (0.5 * node_costs_.combine.at(kInsideFootprint) +
            node_costs_.reduce.at(kInsideFootprint)) *
           node_costs_.sharing;
  }

  void set_between(const LinkClass& between) { between_ = between; }

  void set_across(const LinkClass& across) { across_ = across; }

  // The simplest costs: equal for all footprints, ranks on cores of their own.
  void set_links(const LinkClass& inside, const LinkClass& between, double gamma_us_per_mib);

  // The topology of a group of some of these ranks, in the group's order. Fails with
  // kInvalidArgument on a rank that does not exist or is named twice.
  Result<Topology> restricted_to(std::span<const int> ranks) const;

  bool operator==(const Topology&) const = default;

 private:
  Status form_racks(std::span<const int> rack_of);

  std::vector<int> node_of_;
  std::vector<int> local_of_;
  std::vector<std::vector<int>> members_;
  std::vector<bool> mapped_;
  bool mapped_all_ = true;
  bool pulls_ = false;
  int locals_min_ = 0;
  int locals_max_ = 0;
  std::vector<int> rack_of_node_;
  std::vector<int> rack_begin_ = {0};  // of each rack its first node, then the number of nodes
  int rack_nodes_min_ = 0;
  int rack_nodes_max_ = 0;
  NodeCosts node_costs_;
  LinkClass between_ = kBetweenDefault;
  LinkClass across_ = kBetweenDefault;
};

}  // namespace isthmus
