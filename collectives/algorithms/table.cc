#include <algorithm>
#include <array>
#include <bit>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/alone.h"
#include "collectives/algorithms/mapped.h"
#include "collectives/algorithms/message.h"
#include "collectives/algorithms/two_level.h"

namespace isthmus {

namespace {

constexpr std::size_t kLineBytes = 48;    // of payload in an announcement line
constexpr std::size_t kSlotBytes = 8192;  // of a group's slot: schedule/ does not see transport/
constexpr double kMib = 1048576.0;

// Steps of one rank's schedule that tunings aim at: below Builder::kStepsMax, built in a
// millisecond.
constexpr std::uint32_t kStepsAim = 1U << 15;

// Staging of one operation: a quarter of what a process has by default.
constexpr std::size_t kStageBytesMax = std::size_t{8} << 20;

constexpr int kMessageRanksMax = 4096;
constexpr int kOperandsMax = kReduceOperandsMax;

// A message that leaves beside others costs this share of the first one's alpha.
constexpr double kMoreMessages = 0.1;

std::size_t class_bytes(const Payload& payload) {
  return size_class_bytes(size_class(payload.bytes));
}

double mib(const Payload& payload) {
  return static_cast<double>(payload.bytes) / kMib;
}

// One Reduce takes all operands of a node.
bool one_node(const Topology& topology, const Payload&) {
  return topology.one_mapped_node() && topology.ranks() <= kOperandsMax;
}

// Of the class, so that all its sizes get one answer.
bool fits_line(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) && class_bytes(payload) <= kLineBytes;
}

bool fits_slot(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) && class_bytes(payload) <= kSlotBytes;
}

bool blocks_fit_slot(const Topology& topology, const Payload& payload) {
  const std::size_t ranks = static_cast<std::size_t>(topology.ranks());
  return one_node(topology, payload) &&
         align_line(class_bytes(payload)) <= kSlotBytes / std::max<std::size_t>(ranks, 1);
}

bool one_rank(const Topology& topology, const Payload&) {
  return topology.ranks() == 1;
}

bool messages(const Topology& topology, const Payload&) {
  return topology.ranks() >= 2 && topology.ranks() <= kMessageRanksMax;
}

// All operands in one Reduce.
bool messages_at_once(const Topology& topology, const Payload& payload) {
  return messages(topology, payload) && topology.ranks() <= kOperandsMax;
}

// Two operands at a time: a 16-bit sum of more than two ranks rounds more than once, so those come
// here only where nothing else can.
bool messages_in_turn(const Topology& topology, const Payload& payload) {
  return messages(topology, payload) &&
         (!payload.rounds || topology.ranks() == 2 || topology.ranks() > kOperandsMax);
}

bool several_nodes(const Topology& topology, const Payload&) {
  return topology.nodes() >= 2 && topology.mapped_all() && topology.ranks() <= kMessageRanksMax &&
         topology.nodes() <= kOperandsMax && topology.locals_max() <= kOperandsMax;
}

bool leaders_fit_slot(const Topology& topology, const Payload& payload) {
  return several_nodes(topology, payload) && 2 * align_line(class_bytes(payload)) <= kSlotBytes;
}

Tuning at_once(const Topology&, const Payload&) {
  return {};
}

std::size_t ranks_of(const Topology& topology) {
  return static_cast<std::size_t>(topology.ranks());
}

// Pieces of about `piece` bytes at `steps` steps each, `slots` of them staged at once.
Tuning in_pieces(const Payload& payload, std::size_t piece, std::size_t steps, std::uint32_t slots,
                 std::uint32_t lead) {
  const std::uint32_t most = std::max(kStepsAim / static_cast<std::uint32_t>(steps), 1U);
  const std::uint32_t pieces = pieces_of(payload.bytes, piece, most);
  return {pieces, std::min(pieces, slots), std::min(pieces - 1, lead)};
}

// Whether a rank's staging of `units` units in each slot stays within bounds.
bool stage_holds(const Payload& payload, const Tuning& tuning, std::size_t units) {
  return class_bytes(payload) / tuning.pieces * tuning.slots * units <= kStageBytesMax;
}

// Staged pieces: about four, from 16 KiB, where flags between far cores cost as much as the copy,
// to what four slots leave of an L2 cache. Smaller ones lost at every size between far cores.
constexpr std::size_t kPieceLeast = 16384;
constexpr std::size_t kPieceMost = 131072;

std::size_t quarter(const Payload& payload) {
  return std::clamp(class_bytes(payload) / 4, kPieceLeast, kPieceMost);
}

Tuning staged_whole(const Topology&, const Payload& payload) {
  return in_pieces(payload, quarter(payload), 6, 4, 2);
}

bool stages_whole(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) && stage_holds(payload, staged_whole(topology, payload), 1);
}

// The same for blocks: a piece of all blocks is handled at once.
Tuning staged_blocks(const Topology& topology, const Payload& payload) {
  const std::size_t piece = quarter(payload) * 2 / std::max<std::size_t>(ranks_of(topology), 2);
  return in_pieces(payload, std::max<std::size_t>(piece, 4096), ranks_of(topology) + 5, 4, 2);
}

bool stages_blocks(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) &&
         stage_holds(payload, staged_blocks(topology, payload), ranks_of(topology));
}

Tuning slices(const Topology& topology, const Payload& payload) {
  const std::size_t chunk = std::clamp<std::size_t>(class_bytes(payload) / 4, 65536, 524288);
  return in_pieces(payload, chunk, ranks_of(topology) + 10, 3, 1);
}

bool stages_slices(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) && stage_holds(payload, slices(topology, payload), 1);
}

// Segments of 256 KiB of a rank's share: one is reduced while the next is on the wire.
Tuning segments(std::size_t share, std::size_t segment, int ranks) {
  const auto most = static_cast<std::uint32_t>(std::clamp(4096 / ranks, 1, 64));
  const std::uint32_t pieces = pieces_of(share, segment, most);
  return {pieces, 2, 1};
}

Tuning ring_whole(const Topology& topology, const Payload& payload) {
  const std::size_t ranks = static_cast<std::size_t>(topology.ranks());
  return segments(class_bytes(payload) / ranks, 262144, topology.ranks());
}

Tuning ring_blocks(const Topology& topology, const Payload& payload) {
  return segments(class_bytes(payload), 262144, topology.ranks());
}

// The root's data in pieces that keep a chain of nodes busy.
Tuning tree_pieces(const Topology&, const Payload& payload) {
  return in_pieces(payload, 262144, 16, 4, 1);
}

// Chunks of 128 to 512 KiB: large enough for the wire, several in flight.
Tuning lanes(const Topology& topology, const Payload& payload) {
  const std::size_t chunk = std::clamp<std::size_t>(class_bytes(payload) / 8, 131072, 524288);
  const std::size_t steps = static_cast<std::size_t>(6 * topology.nodes() + topology.locals_max());
  Tuning tuning = in_pieces(payload, chunk, steps + 10, 4, 1);
  tuning.slots = 4;
  tuning.lead = 1;
  return tuning;
}

bool stages_lanes(const Topology& topology, const Payload& payload) {
  return several_nodes(topology, payload) && stage_holds(payload, lanes(topology, payload), 1);
}

Tuning node_blocks(const Topology& topology, const Payload& payload) {
  const std::size_t piece =
      std::min<std::size_t>(131072, kStageBytesMax / (4 * ranks_of(topology)));
  return in_pieces(payload, piece, 2 * ranks_of(topology) + 10, 4, 2);
}

bool stages_node_blocks(const Topology& topology, const Payload& payload) {
  return several_nodes(topology, payload) &&
         stage_holds(payload, node_blocks(topology, payload), ranks_of(topology));
}

bool stages_tree(const Topology& topology, const Payload& payload) {
  return several_nodes(topology, payload) &&
         stage_holds(payload, tree_pieces(topology, payload), 1);
}

double shown_cost(const Topology& topology, const Payload& payload) {
  return topology.inside().alpha_us + mib(payload) * topology.inside().beta_us_per_mib;
}

double reduce_all_cost(const Topology& topology, const Payload& payload) {
  return shown_cost(topology, payload) +
         mib(payload) * topology.gamma_us_per_mib() * (topology.ranks() - 1);
}

double flat_cost(const Topology& topology, const Payload& payload) {
  return reduce_all_cost(topology, payload) + topology.inside().alpha_us;
}

// Copied: the input but for the own slice, the own result, and the others' results.
double slice_cost(const Topology& topology, const Payload& payload) {
  const double others = static_cast<double>(topology.ranks() - 1) / topology.ranks();
  return 4.0 * topology.inside().alpha_us +
         mib(payload) * ((1.0 + others) * topology.inside().beta_us_per_mib +
                         topology.gamma_us_per_mib() * others);
}

double gather_cost(const Topology& topology, const Payload& payload) {
  return 2.0 * topology.inside().alpha_us +
         mib(payload) * topology.inside().beta_us_per_mib * topology.ranks();
}

double scatter_cost(const Topology& topology, const Payload& payload) {
  return 2.0 * topology.inside().alpha_us +
         mib(payload) * (topology.ranks() - 1) *
             (topology.inside().beta_us_per_mib + topology.gamma_us_per_mib());
}

double staged_cost(const Topology& topology, const Payload& payload) {
  return 2.0 * topology.inside().alpha_us + mib(payload) * 1.25 * topology.inside().beta_us_per_mib;
}

double flag_cost(const Topology& topology, const Payload&) {
  return topology.inside().alpha_us;
}

double no_cost(const Topology&, const Payload&) {
  return 0.0;
}

// Ranks that share a neck; within one node every rank has its own way.
double sharers(const Topology& topology) {
  return topology.nodes() == 1 ? 1.0 : topology.locals_max();
}

// One step in which every rank sends `count` messages of `bytes_mib` each over its node's neck.
double step_cost(const Topology& topology, double count, double bytes_mib) {
  const double alpha = topology.between().alpha_us * (1.0 + kMoreMessages * (count - 1.0));
  return alpha + count * bytes_mib * topology.between().beta_us_per_mib * sharers(topology);
}

double log2_steps(int count) {
  return static_cast<double>(std::bit_width(static_cast<unsigned>(count) - 1U));
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

// Neighbours of a ring are mostly on one node: one message crosses each neck per step.
double ring_steps_cost(const Topology& topology, double block_mib, double gamma) {
  return others(topology) *
         (topology.between().alpha_us + block_mib * (topology.between().beta_us_per_mib + gamma));
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

// Two sections of a pipeline of `pieces`: the slower one, and the other's first piece.
double overlapped(double one, double other, std::uint32_t pieces) {
  return std::max(one, other) + std::min(one, other) / pieces;
}

double node_step(const Topology& topology, double mib_per_node) {
  const double more = kMoreMessages * (topology.nodes() - 2);
  return topology.between().alpha_us * (1.0 + more) +
         mib_per_node * topology.between().beta_us_per_mib;
}

double inside_cost(const Topology& topology, double copied_mib, double reduced_mib) {
  return 4.0 * topology.inside().alpha_us + copied_mib * topology.inside().beta_us_per_mib +
         reduced_mib * topology.gamma_us_per_mib();
}

double leader_cost(const Topology& topology, const Payload& payload) {
  return node_step(topology, mib(payload) * (topology.nodes() - 1)) +
         inside_cost(topology, 3.0 * mib(payload),
                     mib(payload) * (topology.locals_max() + topology.nodes()));
}

// Every local rank sends beside the others of its node.
double lane_messages(const Topology& topology) {
  return kMoreMessages * (topology.locals_min() - 1) * topology.between().alpha_us;
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

constexpr std::array kTable = {
    Algorithm{"alone", OpKind::kBarrier, "one rank: nothing to do", one_rank, at_once, no_cost,
              barrier_alone},
    Algorithm{"alone", OpKind::kAllReduce, "one rank: a copy", one_rank, at_once, no_cost,
              all_reduce_alone},
    Algorithm{"alone", OpKind::kAllGather, "one rank: a copy", one_rank, at_once, no_cost,
              all_gather_alone},
    Algorithm{"alone", OpKind::kReduceScatter, "one rank: a copy", one_rank, at_once, no_cost,
              reduce_scatter_alone},
    Algorithm{"alone", OpKind::kBroadcast, "one rank: nothing to do", one_rank, at_once, no_cost,
              broadcast_alone},
    Algorithm{"line_barrier", OpKind::kBarrier, "one node: everyone's announcement line", one_node,
              at_once, flag_cost, line_barrier},
    Algorithm{"line_all_reduce", OpKind::kAllReduce,
              "one node, up to 48 bytes: data in the announcement line", fits_line, at_once,
              shown_cost, line_all_reduce},
    Algorithm{"slot_all_reduce", OpKind::kAllReduce,
              "one node, up to 8 KiB: data in the group's slot", fits_slot, at_once,
              reduce_all_cost, slot_all_reduce},
    Algorithm{"flat_all_reduce", OpKind::kAllReduce,
              "one node: everyone reads everyone's staged pieces", stages_whole, staged_whole,
              flat_cost, flat_all_reduce},
    Algorithm{"slice_all_reduce", OpKind::kAllReduce,
              "one node: everyone reduces one slice of each chunk", stages_slices, slices,
              slice_cost, slice_all_reduce},
    Algorithm{"line_all_gather", OpKind::kAllGather,
              "one node, blocks up to 48 bytes: data in the announcement line", fits_line, at_once,
              shown_cost, line_all_gather},
    Algorithm{"slot_all_gather", OpKind::kAllGather,
              "one node, blocks up to 8 KiB: data in the group's slot", fits_slot, at_once,
              gather_cost, slot_all_gather},
    Algorithm{"staged_all_gather", OpKind::kAllGather, "one node: through staging, piece by piece",
              stages_blocks, staged_blocks, gather_cost, staged_all_gather},
    Algorithm{"slot_reduce_scatter", OpKind::kReduceScatter,
              "one node, all blocks within 8 KiB: data in the group's slot", blocks_fit_slot,
              at_once, scatter_cost, slot_reduce_scatter},
    Algorithm{"staged_reduce_scatter", OpKind::kReduceScatter,
              "one node: through staging, piece by piece", stages_blocks, staged_blocks,
              scatter_cost, staged_reduce_scatter},
    Algorithm{"line_broadcast", OpKind::kBroadcast,
              "one node, up to 48 bytes: data in the announcement line", fits_line, at_once,
              shown_cost, line_broadcast},
    Algorithm{"slot_broadcast", OpKind::kBroadcast,
              "one node, up to 8 KiB: data in the group's slot", fits_slot, at_once, shown_cost,
              slot_broadcast},
    Algorithm{"staged_broadcast", OpKind::kBroadcast, "one node: through staging, piece by piece",
              stages_whole, staged_whole, staged_cost, staged_broadcast},
    Algorithm{"dissemination_barrier", OpKind::kBarrier, "messages: log2(P) rounds of signals",
              messages, at_once, signals_cost, dissemination_barrier},
    Algorithm{"doubling_all_reduce", OpKind::kAllReduce,
              "messages: log2(P) exchanges of the whole data", messages_in_turn, at_once,
              doubling_cost, doubling_all_reduce},
    Algorithm{"gather_all_reduce", OpKind::kAllReduce,
              "messages: everyone sends everything to everyone", messages_at_once, at_once,
              gather_all_reduce_cost, gather_all_reduce},
    Algorithm{"ring_all_reduce", OpKind::kAllReduce,
              "messages: reduce-scatter and all-gather around a ring", messages_in_turn, ring_whole,
              ring_all_reduce_cost, ring_all_reduce},
    Algorithm{"direct_all_reduce", OpKind::kAllReduce,
              "messages: reduce-scatter and all-gather with all peers at once", messages_at_once,
              ring_whole, direct_all_reduce_cost, direct_all_reduce},
    Algorithm{"direct_all_gather", OpKind::kAllGather, "messages: every block to every rank",
              messages, at_once, direct_gather_cost, direct_all_gather},
    Algorithm{"doubling_all_gather", OpKind::kAllGather,
              "messages: log2(P) rounds, twice the blocks each", messages, at_once,
              doubling_gather_cost, doubling_all_gather},
    Algorithm{"ring_all_gather", OpKind::kAllGather, "messages: blocks travel around a ring",
              messages, ring_blocks, ring_gather_cost, ring_all_gather},
    Algorithm{"direct_reduce_scatter", OpKind::kReduceScatter,
              "messages: every operand to its block's owner", messages_at_once, ring_blocks,
              direct_scatter_cost, direct_reduce_scatter},
    Algorithm{"ring_reduce_scatter", OpKind::kReduceScatter,
              "messages: partial sums travel around a ring", messages_in_turn, ring_blocks,
              ring_scatter_cost, ring_reduce_scatter},
    Algorithm{"tree_broadcast", OpKind::kBroadcast, "messages: a binomial tree", messages,
              tree_pieces, tree_cost, tree_broadcast},
    Algorithm{"chain_broadcast", OpKind::kBroadcast, "messages: a pipelined chain of ranks",
              messages, tree_pieces, chain_cost, chain_broadcast},
    Algorithm{"two_level_barrier", OpKind::kBarrier, "nodes: announcements inside, signals between",
              several_nodes, at_once, node_barrier_cost, two_level_barrier},
    Algorithm{"leader_all_reduce", OpKind::kAllReduce,
              "nodes, up to 4 KiB: the first ranks exchange sums of their nodes", leaders_fit_slot,
              at_once, leader_cost, leader_all_reduce},
    Algorithm{"exchange_all_reduce", OpKind::kAllReduce,
              "nodes: a slice per local rank, whole slices exchanged between nodes", stages_lanes,
              lanes, exchange_cost, exchange_all_reduce},
    Algorithm{"lanes_all_reduce", OpKind::kAllReduce,
              "nodes: a slice per local rank, one part of it reduced per node", stages_lanes, lanes,
              lanes_cost, lanes_all_reduce},
    Algorithm{"two_level_all_gather", OpKind::kAllGather, "nodes: each block enters a node once",
              stages_node_blocks, node_blocks, node_gather_cost, two_level_all_gather},
    Algorithm{"two_level_reduce_scatter", OpKind::kReduceScatter,
              "nodes: one sum per block leaves a node", stages_node_blocks, node_blocks,
              node_scatter_cost, two_level_reduce_scatter},
    Algorithm{"two_level_tree_broadcast", OpKind::kBroadcast,
              "nodes: a binomial tree of nodes, staging inside", stages_tree, tree_pieces,
              node_tree_cost, two_level_tree_broadcast},
    Algorithm{"two_level_chain_broadcast", OpKind::kBroadcast,
              "nodes: a pipelined chain of nodes, staging inside", stages_tree, tree_pieces,
              node_chain_cost, two_level_chain_broadcast},
};

}  // namespace

std::span<const Algorithm> algorithms() {
  return kTable;
}

}  // namespace isthmus
