#pragma once

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// What an algorithm that sends messages costs: the column `cost_us` of the table of algorithms, in
// the terms of schedule/simulate. A test holds the choice that they make near the simulated best.
// What stays inside a node has no closed form: estimate.h counts its steps.

// One step in which every rank sends `count` messages of `bytes_mib` each over its node's neck.
double step_cost(const Topology& topology, double count, double bytes_mib);

// All ranks but one.
double others(const Topology& topology);

// Messages.
double signals_cost(const Topology& topology, const Payload& payload);
double doubling_cost(const Topology& topology, const Payload& payload);
double gather_all_reduce_cost(const Topology& topology, const Payload& payload);
double direct_all_reduce_cost(const Topology& topology, const Payload& payload);
double ring_all_reduce_cost(const Topology& topology, const Payload& payload);
double ring_scatter_cost(const Topology& topology, const Payload& payload);
double direct_scatter_cost(const Topology& topology, const Payload& payload);
double ring_gather_cost(const Topology& topology, const Payload& payload);
double direct_gather_cost(const Topology& topology, const Payload& payload);
double doubling_gather_cost(const Topology& topology, const Payload& payload);
double tree_cost(const Topology& topology, const Payload& payload);
double chain_cost(const Topology& topology, const Payload& payload);
double direct_reduce_cost(const Topology& topology, const Payload& payload);
double root_gather_cost(const Topology& topology, const Payload& payload);
double root_scatter_cost(const Topology& topology, const Payload& payload);
double tree_reduce_cost(const Topology& topology, const Payload& payload);
double chain_reduce_cost(const Topology& topology, const Payload& payload);
double pairwise_cost(const Topology& topology, const Payload& payload);
double halving_cost(const Topology& topology, const Payload& payload);

// Nodes.
double leader_cost(const Topology& topology, const Payload& payload);
double lanes_cost(const Topology& topology, const Payload& payload);
double exchange_cost(const Topology& topology, const Payload& payload);
double leader_doubling_cost(const Topology& topology, const Payload& payload);
double exchange_shards_cost(const Topology& topology, const Payload& payload);
double halving_shards_cost(const Topology& topology, const Payload& payload);

double halving_lanes_cost(const Topology& topology, const Payload& payload);
double node_gather_cost(const Topology& topology, const Payload& payload);
double node_scatter_cost(const Topology& topology, const Payload& payload);
double node_tree_cost(const Topology& topology, const Payload& payload);
double node_tree_reduce_cost(const Topology& topology, const Payload& payload);

// All sums enter the root's node.
double node_direct_reduce_cost(const Topology& topology, const Payload& payload);
double node_chain_cost(const Topology& topology, const Payload& payload);
double node_barrier_cost(const Topology& topology, const Payload& payload);

}  // namespace isthmus
