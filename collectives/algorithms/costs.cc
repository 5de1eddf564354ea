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

// A message that may go to any node.
double far_alpha(const Topology& topology) {
  return topology.racks() > 1 ? topology.across().alpha_us : topology.between().alpha_us;
}

// What leaves (or enters) a node, and what its rack, at once.
double wire_us(const Topology& topology, double node_mib, double rack_mib) {
  const double node_us = node_mib * topology.between().beta_us_per_mib;
  return topology.racks() > 1 ? std::max(node_us, rack_mib * topology.across().beta_us_per_mib)
                              : node_us;
}

double racks_but_one(const Topology& topology) {
  return topology.racks() - 1;
}

double rack_nodes(const Topology& topology) {
  return topology.rack_nodes_max();
}

// Ranks of a rack, and those of the others.
double rack_ranks(const Topology& topology) {
  return std::min<double>(rack_nodes(topology) * topology.locals_max(), topology.ranks());
}

double ranks_apart(const Topology& topology) {
  return topology.ranks() - rack_ranks(topology);
}

double log2_steps(int count) {
  return static_cast<double>(std::bit_width(static_cast<unsigned>(count) - 1U));
}

// Neighbours of a ring are mostly on one node: one message crosses each neck per step.
double ring_steps_cost(const Topology& topology, double block_mib, double gamma) {
  return others(topology) *
         (far_alpha(topology) + wire_us(topology, block_mib, block_mib) + block_mib * gamma);
}

// The root's own link carries everything, beside its signals.
double root_messages_cost(const Topology& topology, const Payload& payload, double steps) {
  const double alpha = far_alpha(topology);
  return steps * alpha * (1.0 + kMoreMessages * (others(topology) - 1.0)) +
         wire_us(topology, others(topology) * mib(payload), ranks_apart(topology) * mib(payload));
}

// Two sections of a pipeline of `pieces`: the slower one, and the other's first piece.
double overlapped(double one, double other, std::uint32_t pieces) {
  return std::max(one, other) + std::min(one, other) / pieces;
}

// Messages at once to all of so many nodes but the own one.
double alphas(double alpha_us, double nodes) {
  return nodes < 2.0 ? 0.0 : alpha_us * (1.0 + kMoreMessages * (nodes - 2.0));
}

// What leaves a node, and its rack, in one step of messages to all others.
double node_step(const Topology& topology, double mib_per_node, double mib_per_rack) {
  return alphas(far_alpha(topology), topology.nodes()) +
         wire_us(topology, mib_per_node, mib_per_rack);
}

// The same to every other node, whole.
double to_all_nodes(const Topology& topology, double mib) {
  const double near = rack_nodes(topology);
  return node_step(topology, (topology.nodes() - 1) * mib, near * (topology.nodes() - near) * mib);
}

// Messages within the rack, and beside or after them to one node of each other rack. Every byte
// crosses between racks once.
double by_racks_step(const Topology& topology, double mib_per_node, double mib_per_rack) {
  const double near = alphas(topology.between().alpha_us, rack_nodes(topology));
  return topology.racks() == 1 ? node_step(topology, mib_per_node, 0.0)
                               : near + alphas(far_alpha(topology), topology.racks()) +
                                     wire_us(topology, mib_per_node, mib_per_rack);
}

// From node to node along a tree, first between racks.
double node_tree_us(const Topology& topology, double mib) {
  const double near = alphas(topology.between().alpha_us, rack_nodes(topology));
  const double far = alphas(far_alpha(topology), topology.racks());
  return log2_steps(topology.rack_nodes_max()) * (near + wire_us(topology, mib, 0.0)) +
         (topology.racks() > 1 ? log2_steps(topology.racks()) * (far + wire_us(topology, mib, mib))
                               : 0.0);
}

// Along a chain of so many ranks or nodes, which enters every rack once.
double chain_us(const Topology& topology, double hops, double mib, double piece_mib) {
  const double far = racks_but_one(topology);
  return (hops - far) * (topology.between().alpha_us + wire_us(topology, piece_mib, 0.0)) +
         far * (far_alpha(topology) + wire_us(topology, piece_mib, piece_mib)) +
         wire_us(topology, mib, mib);
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

// What halving and doubling takes among the nodes of a rack, or one node of each rack.
struct InPairs {
  double rounds = 0.0;  // messages that wait for each other
  double bytes = 0.0;   // times that what a node has crosses
  double left = 1.0;    // the share of it that a node has in the end

  // Of so many, of which a power of two takes part where the smallest team has `least`.
  InPairs(int count, int least, double halvings) {
    const double steps = log2_floor(least);
    const double folds = std::ceil(count / std::exp2(steps)) - 1.0;
    left = std::exp2(-halvings);
    rounds = steps + halvings + (folds > 0.0 ? 2.0 : 0.0);
    bytes = 2.0 * (1.0 - left) + (steps - halvings) * left + 2.0 * folds;
  }
};

// The same of all nodes.
struct Halving {
  double latency_us = 0.0;
  double node_bytes = 0.0;  // times that what a node has leaves it, and its rack
  double rack_bytes = 0.0;

  Halving(const Topology& topology, double halvings) {
    const double most = log2_floor(topology.rack_nodes_min());
    const InPairs near(topology.rack_nodes_max(), topology.rack_nodes_min(),
                       std::min(halvings, most));
    latency_us = near.rounds * topology.between().alpha_us;
    node_bytes = near.bytes;
    if (topology.racks() > 1) {
      const double rest =
          std::min(halvings - std::min(halvings, most), log2_floor(topology.racks()));
      const InPairs far(topology.racks(), topology.racks(), rest);
      latency_us += far.rounds * far_alpha(topology);
      node_bytes += near.left * far.bytes;
      rack_bytes = std::exp2(most) * near.left * far.bytes;
    }
  }
};

// Chunks overlap, but each goes through its rounds, and only those that are staged and not yet
// shown are under way.
double halving_lanes_us(const Topology& topology, const Tuning& tuning, double mib,
                        double inside_us) {
  const Halving halving(topology, tuning.halvings);
  const double chunks = tuning.pieces;
  const double under_way = std::min(chunks, tuning.lead + 1.0);
  const double wire = wire_us(topology, halving.node_bytes * mib, halving.rack_bytes * mib);
  return lane_messages(topology) + halving.latency_us * chunks / under_way +
         overlapped(wire, inside_us, tuning.pieces);
}

double node_reduce_cost(const Topology& topology, const Payload& payload) {
  const double hops = log2_steps(topology.nodes());
  return overlapped(node_tree_us(topology, mib(payload)),
                    inside_cost(topology, 2.0 * mib(payload),
                                mib(payload) * (topology.locals_max() - 1.0 + hops)),
                    tree_pieces(topology, payload).pieces);
}

// All ranks' messages in rounds: with those of a rack, and as many with the others as tell racks
// apart. In one of the latter so much leaves a rack.
double rank_rounds(const Topology& topology, double rounds, double mib, double rack_mib) {
  const double far = topology.racks() > 1 ? log2_steps(topology.racks()) : 0.0;
  const double per_node = mib * sharers(topology);
  return (rounds - far) * (topology.between().alpha_us + wire_us(topology, per_node, 0.0)) +
         far * (far_alpha(topology) + wire_us(topology, per_node, rack_mib));
}

// What each of all nodes reduces goes there and back.
double split_us(const Topology& topology, double mib) {
  const double share = static_cast<double>(topology.nodes() - 1) / topology.nodes();
  const double steps = topology.nodes() > 2 ? 2.0 : 1.0;
  return steps * node_step(topology, 2.0 / steps * share * mib, 0.0);
}

// The same in each rack, by as many nodes as the smallest has, and in between for each of their
// parts between racks.
double split_by_racks_us(const Topology& topology, double mib) {
  const double racks = topology.racks();
  const double share = 1.0 / topology.rack_nodes_min();
  const double steps = racks > 2 ? 2.0 : 1.0;
  const double crossing = racks > 2 ? 2.0 * (racks - 1.0) / racks : 1.0;
  const double near = rack_nodes(topology);
  return 2.0 * alphas(topology.between().alpha_us, near) +
         steps * alphas(far_alpha(topology), racks) +
         wire_us(topology, (2.0 * (near - 1.0) + crossing) * share * mib, crossing * mib);
}

}  // namespace

// Every rank sends so many messages at once. Ranks that share a processor send in turn.
double step_cost(const Topology& topology, double count, double bytes_mib) {
  const double in_turn = count * topology.node_costs().sharing;
  const double alpha = far_alpha(topology) * (1.0 + kMoreMessages * (in_turn - 1.0));
  const double far = std::min(count, ranks_apart(topology));
  return alpha + wire_us(topology, count * bytes_mib * sharers(topology),
                         far * bytes_mib * rack_ranks(topology));
}

double others(const Topology& topology) {
  return topology.ranks() - 1;
}

double signals_cost(const Topology& topology, const Payload&) {
  return log2_steps(topology.ranks()) * far_alpha(topology);
}

double doubling_cost(const Topology& topology, const Payload& payload) {
  const double fold = std::has_single_bit(static_cast<unsigned>(topology.ranks())) ? 0.0 : 1.0;
  const double rounds = log2_steps(topology.ranks()) + fold;
  return rank_rounds(topology, rounds, mib(payload), rack_ranks(topology) * mib(payload)) +
         rounds * mib(payload) * topology.gamma_us_per_mib();
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
  return 2.0 * signals_cost(topology, payload) +
         wire_us(topology, others(topology) * mib(payload) * topology.locals_max(),
                 ranks_apart(topology) * mib(payload) * rack_ranks(topology));
}

double tree_cost(const Topology& topology, const Payload& payload) {
  return rank_rounds(topology, log2_steps(topology.ranks()), mib(payload), mib(payload));
}

double chain_cost(const Topology& topology, const Payload& payload) {
  const double piece = mib(payload) / tree_pieces(topology, payload).pieces;
  return chain_us(topology, others(topology), mib(payload), piece);
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
         wire_us(topology, 2.0 * mib(payload) * sharers(topology),
                 2.0 * mib(payload) * rack_ranks(topology) * racks_but_one(topology) /
                     topology.racks()) +
         mib(payload) * topology.gamma_us_per_mib() +
         (folds ? 2.0 * whole + mib(payload) * topology.gamma_us_per_mib() : 0.0);
}

double leader_cost(const Topology& topology, const Payload& payload) {
  return to_all_nodes(topology, mib(payload)) +
         inside_cost(topology, 3.0 * mib(payload),
                     mib(payload) * (topology.locals_max() + topology.nodes()));
}

double lanes_cost(const Topology& topology, const Payload& payload) {
  return lane_messages(topology) +
         overlapped(topology.racks() > 1 ? split_by_racks_us(topology, mib(payload))
                                         : split_us(topology, mib(payload)),
                    inside_cost(topology, 3.0 * mib(payload), mib(payload)),
                    lanes(topology, payload).pieces);
}

double exchange_cost(const Topology& topology, const Payload& payload) {
  return lane_messages(topology) +
         overlapped(to_all_nodes(topology, mib(payload)),
                    inside_cost(topology, 3.0 * mib(payload), mib(payload)),
                    lanes(topology, payload).pieces);
}

double exchange_shards_cost(const Topology& topology, const Payload& payload) {
  const double shards = shards_of(topology, payload.shards);
  return lane_messages(topology) +
         overlapped(to_all_nodes(topology, shards * mib(payload)),
                    inside_cost(topology, shards * mib(payload),
                                mib(payload) * (shards + topology.nodes())),
                    node_shards(topology, payload).pieces);
}

double leader_doubling_cost(const Topology& topology, const Payload& payload) {
  const Halving doubling(topology, 0.0);
  return doubling.latency_us +
         wire_us(topology, doubling.node_bytes * mib(payload), doubling.rack_bytes * mib(payload)) +
         inside_cost(topology, 3.0 * mib(payload),
                     mib(payload) * (topology.locals_max() + doubling.node_bytes + 1.0));
}

double halving_lanes_cost(const Topology& topology, const Payload& payload) {
  const Tuning tuning = halving_lanes(topology, payload);
  const double bytes = Halving(topology, tuning.halvings).node_bytes;
  return halving_lanes_us(topology, tuning, mib(payload),
                          inside_cost(topology, 3.0 * mib(payload), mib(payload) * (1.0 + bytes)));
}

double halving_shards_cost(const Topology& topology, const Payload& payload) {
  const Tuning tuning = halving_shards(topology, payload);
  const double shards = shards_of(topology, payload.shards);
  const double bytes = Halving(topology, tuning.halvings).node_bytes;
  return halving_lanes_us(
      topology, tuning, shards * mib(payload),
      inside_cost(topology, shards * mib(payload), mib(payload) * (shards + bytes)));
}

double node_gather_cost(const Topology& topology, const Payload& payload) {
  const double apart = topology.ranks() - topology.locals_min();
  const double signals = log2_steps(topology.nodes()) * far_alpha(topology);
  return overlapped(
      signals + by_racks_step(topology, apart * mib(payload), ranks_apart(topology) * mib(payload)),
      inside_cost(topology, topology.ranks() * mib(payload), 0.0),
      node_blocks(topology, payload).pieces);
}

double node_scatter_cost(const Topology& topology, const Payload& payload) {
  const double apart = topology.ranks() - topology.locals_min();
  return overlapped(
      by_racks_step(topology, apart * mib(payload), ranks_apart(topology) * mib(payload)),
      inside_cost(topology, topology.ranks() * mib(payload), topology.ranks() * mib(payload)),
      node_blocks(topology, payload).pieces);
}

double node_tree_cost(const Topology& topology, const Payload& payload) {
  return node_tree_us(topology, mib(payload)) +
         inside_cost(topology, 2.0 * mib(payload) / tree_pieces(topology, payload).pieces, 0.0);
}

double node_tree_reduce_cost(const Topology& topology, const Payload& payload) {
  return node_reduce_cost(topology, payload);
}

double node_direct_reduce_cost(const Topology& topology, const Payload& payload) {
  const double near = rack_nodes(topology) - 1.0;
  const double far = racks_but_one(topology);
  return overlapped(by_racks_step(topology, (near + far) * mib(payload), far * mib(payload)),
                    inside_cost(topology, 2.0 * mib(payload),
                                mib(payload) * (topology.locals_max() - 1.0 + near + far)),
                    star_pieces(topology, payload).pieces);
}

double node_chain_cost(const Topology& topology, const Payload& payload) {
  const double piece = mib(payload) / tree_pieces(topology, payload).pieces;
  return chain_us(topology, topology.nodes() - 1, mib(payload), piece) +
         inside_cost(topology, 2.0 * piece, 0.0);
}

double node_barrier_cost(const Topology& topology, const Payload&) {
  return log2_steps(topology.nodes()) * far_alpha(topology) + 2.0 * topology.inside().alpha_us;
}

}  // namespace isthmus
