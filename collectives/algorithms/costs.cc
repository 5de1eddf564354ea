#include "collectives/algorithms/costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "collectives/algorithms/fits.h"

namespace isthmus {

namespace {

// A message that leaves beside others costs this share of the first one's alpha.
constexpr double kMoreMessages = 0.1;

// Ranks that share a neck; within one node every rank has its own way.
double sharers(const Topology& topology) {
  return topology.nodes() == 1 ? 1.0 : topology.locals_max();
}

double log2_steps(int count) {
  return static_cast<double>(std::bit_width(static_cast<unsigned>(count) - 1U));
}

// Neighbours of a ring are mostly on one node: one message crosses each neck per step.
double ring_steps_cost(const Topology& topology, double block_mib, double gamma) {
  return others(topology) *
         (topology.between().alpha_us + block_mib * (topology.between().beta_us_per_mib + gamma));
}

// The root's own link carries everything, beside its signals.
double root_messages_cost(const Topology& topology, const Payload& payload, double steps) {
  const double alpha = topology.between().alpha_us;
  return steps * alpha * (1.0 + kMoreMessages * (others(topology) - 1.0)) +
         others(topology) * mib(payload) * topology.between().beta_us_per_mib;
}

// Two sections of a pipeline of `pieces`: the slower one, and the other's first piece.
double overlapped(double one, double other, std::uint32_t pieces) {
  return std::max(one, other) + std::min(one, other) / pieces;
}

// What leaves a node in one step.
double node_step(const Topology& topology, double mib_per_node) {
  const double more = kMoreMessages * (topology.nodes() - 2);
  return topology.between().alpha_us * (1.0 + more) +
         mib_per_node * topology.between().beta_us_per_mib;
}

// Copying and reducing inside a node.
double inside_cost(const Topology& topology, double copied_mib, double reduced_mib) {
  return 4.0 * topology.inside().alpha_us + copied_mib * topology.inside().beta_us_per_mib +
         reduced_mib * topology.gamma_us_per_mib();
}

// Every local rank sends beside the others of its node.
double lane_messages(const Topology& topology) {
  return kMoreMessages * (topology.locals_min() - 1) * topology.between().alpha_us;
}

double log2_floor(int count) {
  return static_cast<double>(std::bit_width(static_cast<unsigned>(count))) - 1.0;
}

bool folds_nodes(const Topology& topology) {
  return !std::has_single_bit(static_cast<unsigned>(topology.nodes()));
}

// Messages between nodes that wait for each other, where so many rounds halve.
double halving_rounds(const Topology& topology, std::uint32_t halvings) {
  return log2_floor(topology.nodes()) + halvings + (folds_nodes(topology) ? 2.0 : 0.0);
}

// Times that what a node has crosses between nodes, halved and doubled.
double halving_bytes(const Topology& topology, const Tuning& tuning) {
  const double part = std::exp2(-static_cast<double>(tuning.halvings));
  const double doublings = log2_floor(topology.nodes()) - tuning.halvings;
  return 2.0 * (1.0 - part) + doublings * part + (folds_nodes(topology) ? 2.0 : 0.0);
}

// Chunks overlap, but each goes through its rounds, and only those that are staged and not yet
// shown are under way.
double halving_lanes_us(const Topology& topology, const Tuning& tuning, double crossing_mib,
                        double inside_us) {
  const double chunks = tuning.pieces;
  const double under_way = std::min(chunks, tuning.lead + 1.0);
  const double latency = halving_rounds(topology, tuning.halvings) * topology.between().alpha_us;
  const double wire = crossing_mib * topology.between().beta_us_per_mib;
  return lane_messages(topology) + latency * chunks / under_way +
         overlapped(wire, inside_us, tuning.pieces);
}

double between_us(const Topology& topology, double message_mib) {
  return topology.between().alpha_us + message_mib * topology.between().beta_us_per_mib;
}

double node_reduce_cost(const Topology& topology, const Payload& payload, double hops) {
  return overlapped(hops * node_step(topology, mib(payload)),
                    inside_cost(topology, 2.0 * mib(payload),
                                mib(payload) * (topology.locals_max() - 1.0 + hops)),
                    tree_pieces(topology, payload).pieces);
}

}  // namespace

double step_cost(const Topology& topology, double count, double bytes_mib) {
  const double alpha = topology.between().alpha_us * (1.0 + kMoreMessages * (count - 1.0));
  return alpha + count * bytes_mib * topology.between().beta_us_per_mib * sharers(topology);
}

double others(const Topology& topology) {
  return topology.ranks() - 1;
}

double signals_cost(const Topology& topology, const Payload&) {
  return log2_steps(topology.ranks()) * topology.between().alpha_us;
}

double doubling_cost(const Topology& topology, const Payload& payload) {
  const double fold = std::has_single_bit(static_cast<unsigned>(topology.ranks())) ? 0.0 : 1.0;
  return (log2_steps(topology.ranks()) + fold) *
         (step_cost(topology, 1.0, mib(payload)) + mib(payload) * topology.gamma_us_per_mib());
}

double gather_all_reduce_cost(const Topology& topology, const Payload& payload) {
  return step_cost(topology, others(topology), mib(payload)) +
         mib(payload) * others(topology) * topology.gamma_us_per_mib();
}

double direct_all_reduce_cost(const Topology& topology, const Payload& payload) {
  return 2.0 * step_cost(topology, others(topology), mib(payload) / topology.ranks()) +
         mib(payload) * topology.gamma_us_per_mib();
}

double ring_all_reduce_cost(const Topology& topology, const Payload& payload) {
  const double block = mib(payload) / topology.ranks();
  return ring_steps_cost(topology, block, topology.gamma_us_per_mib()) +
         ring_steps_cost(topology, block, 0.0);
}

double ring_scatter_cost(const Topology& topology, const Payload& payload) {
  return ring_steps_cost(topology, mib(payload), topology.gamma_us_per_mib());
}

double direct_scatter_cost(const Topology& topology, const Payload& payload) {
  return step_cost(topology, others(topology), mib(payload)) +
         mib(payload) * others(topology) * topology.gamma_us_per_mib();
}

double ring_gather_cost(const Topology& topology, const Payload& payload) {
  return signals_cost(topology, payload) + ring_steps_cost(topology, mib(payload), 0.0);
}

double direct_gather_cost(const Topology& topology, const Payload& payload) {
  return step_cost(topology, others(topology), mib(payload)) +
         mib(payload) * 2.0 * topology.ranks();
}

double doubling_gather_cost(const Topology& topology, const Payload& payload) {
  return 2.0 * signals_cost(topology, payload) + others(topology) * mib(payload) *
                                                     topology.between().beta_us_per_mib *
                                                     topology.locals_max();
}

double tree_cost(const Topology& topology, const Payload& payload) {
  return log2_steps(topology.ranks()) * step_cost(topology, 1.0, mib(payload));
}

double chain_cost(const Topology& topology, const Payload& payload) {
  const double piece = mib(payload) / tree_pieces(topology, payload).pieces;
  return others(topology) * topology.between().alpha_us +
         (mib(payload) + others(topology) * piece) * topology.between().beta_us_per_mib;
}

double direct_reduce_cost(const Topology& topology, const Payload& payload) {
  return root_messages_cost(topology, payload, 1.0) +
         others(topology) * mib(payload) * topology.gamma_us_per_mib();
}

double root_gather_cost(const Topology& topology, const Payload& payload) {
  return root_messages_cost(topology, payload, 2.0);
}

double root_scatter_cost(const Topology& topology, const Payload& payload) {
  return root_messages_cost(topology, payload, 1.0);
}

double tree_reduce_cost(const Topology& topology, const Payload& payload) {
  return tree_cost(topology, payload) +
         log2_steps(topology.ranks()) * mib(payload) * topology.gamma_us_per_mib();
}

double chain_reduce_cost(const Topology& topology, const Payload& payload) {
  return chain_cost(topology, payload) + mib(payload) * topology.gamma_us_per_mib();
}

double pairwise_cost(const Topology& topology, const Payload& payload) {
  return signals_cost(topology, payload) + step_cost(topology, others(topology), mib(payload));
}

double halving_cost(const Topology& topology, const Payload& payload) {
  const bool folds = !std::has_single_bit(static_cast<unsigned>(topology.ranks()));
  const double whole = step_cost(topology, 1.0, mib(payload));
  return 2.0 * signals_cost(topology, payload) +
         2.0 * mib(payload) * topology.between().beta_us_per_mib * sharers(topology) +
         mib(payload) * topology.gamma_us_per_mib() +
         (folds ? 2.0 * whole + mib(payload) * topology.gamma_us_per_mib() : 0.0);
}

double leader_cost(const Topology& topology, const Payload& payload) {
  return node_step(topology, mib(payload) * (topology.nodes() - 1)) +
         inside_cost(topology, 3.0 * mib(payload),
                     mib(payload) * (topology.locals_max() + topology.nodes()));
}

double lanes_cost(const Topology& topology, const Payload& payload) {
  const double share = static_cast<double>(topology.nodes() - 1) / topology.nodes();
  const double steps = topology.nodes() > 2 ? 2.0 : 1.0;
  return lane_messages(topology) +
         overlapped(steps * node_step(topology, 2.0 / steps * share * mib(payload)),
                    inside_cost(topology, 3.0 * mib(payload), mib(payload)),
                    lanes(topology, payload).pieces);
}

double exchange_cost(const Topology& topology, const Payload& payload) {
  return lane_messages(topology) +
         overlapped(node_step(topology, (topology.nodes() - 1) * mib(payload)),
                    inside_cost(topology, 3.0 * mib(payload), mib(payload)),
                    lanes(topology, payload).pieces);
}

double exchange_shards_cost(const Topology& topology, const Payload& payload) {
  const double shards = shards_of(topology, payload.shards);
  return lane_messages(topology) +
         overlapped(node_step(topology, (topology.nodes() - 1) * shards * mib(payload)),
                    inside_cost(topology, shards * mib(payload),
                                mib(payload) * (shards + topology.nodes())),
                    node_shards(topology, payload).pieces);
}

double leader_doubling_cost(const Topology& topology, const Payload& payload) {
  return halving_rounds(topology, 0) * between_us(topology, mib(payload)) +
         inside_cost(topology, 3.0 * mib(payload),
                     mib(payload) * (topology.locals_max() + halving_rounds(topology, 0) + 1.0));
}

double halving_lanes_cost(const Topology& topology, const Payload& payload) {
  const Tuning tuning = halving_lanes(topology, payload);
  const double bytes = halving_bytes(topology, tuning);
  return halving_lanes_us(topology, tuning, bytes * mib(payload),
                          inside_cost(topology, 3.0 * mib(payload), mib(payload) * (1.0 + bytes)));
}

double halving_shards_cost(const Topology& topology, const Payload& payload) {
  const Tuning tuning = halving_shards(topology, payload);
  const double shards = shards_of(topology, payload.shards);
  const double bytes = halving_bytes(topology, tuning);
  return halving_lanes_us(
      topology, tuning, bytes * shards * mib(payload),
      inside_cost(topology, shards * mib(payload), mib(payload) * (shards + bytes)));
}

double node_gather_cost(const Topology& topology, const Payload& payload) {
  const double apart = topology.ranks() - topology.locals_min();
  const double signals = log2_steps(topology.nodes()) * topology.between().alpha_us;
  return overlapped(signals + node_step(topology, apart * mib(payload)),
                    inside_cost(topology, topology.ranks() * mib(payload), 0.0),
                    node_blocks(topology, payload).pieces);
}

double node_scatter_cost(const Topology& topology, const Payload& payload) {
  const double apart = topology.ranks() - topology.locals_min();
  return overlapped(
      node_step(topology, apart * mib(payload)),
      inside_cost(topology, topology.ranks() * mib(payload), topology.ranks() * mib(payload)),
      node_blocks(topology, payload).pieces);
}

double node_tree_cost(const Topology& topology, const Payload& payload) {
  return log2_steps(topology.nodes()) * node_step(topology, mib(payload)) +
         inside_cost(topology, 2.0 * mib(payload) / tree_pieces(topology, payload).pieces, 0.0);
}

double node_tree_reduce_cost(const Topology& topology, const Payload& payload) {
  return node_reduce_cost(topology, payload, log2_steps(topology.nodes()));
}

double node_direct_reduce_cost(const Topology& topology, const Payload& payload) {
  return overlapped(node_step(topology, (topology.nodes() - 1.0) * mib(payload)),
                    inside_cost(topology, 2.0 * mib(payload),
                                mib(payload) * (topology.locals_max() + topology.nodes() - 2.0)),
                    star_pieces(topology, payload).pieces);
}

double node_chain_cost(const Topology& topology, const Payload& payload) {
  const double piece = mib(payload) / tree_pieces(topology, payload).pieces;
  const double hops = topology.nodes() - 1;
  return hops * topology.between().alpha_us +
         (mib(payload) + hops * piece) * topology.between().beta_us_per_mib +
         inside_cost(topology, 2.0 * piece, 0.0);
}

double node_barrier_cost(const Topology& topology, const Payload&) {
  return log2_steps(topology.nodes()) * topology.between().alpha_us +
         2.0 * topology.inside().alpha_us;
}

}  // namespace isthmus
