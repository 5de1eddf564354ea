#include "collectives/algorithms/fits.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

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

std::size_t class_bytes(const Payload& payload) {
  return size_class_bytes(size_class(payload.bytes));
}

// Sums of nodes two at a time.
bool nodes_in_turn(const Topology& topology, const Payload& payload) {
  return several_nodes(topology, payload) && (!payload.rounds || topology.nodes() == 2);
}

// Any number of nodes. More sums than a Reduce takes are rounded in turn: there is no other way.
bool many_nodes(const Topology& topology, const Payload& payload) {
  return topology.nodes() >= 2 && topology.mapped_all() && topology.locals_max() <= kOperandsMax &&
         (!payload.rounds || topology.nodes() > kOperandsMax);
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

// Staged pieces: about four, from 32 KiB to what four slots leave of an L2 cache. Smaller ones cost
// more in flags than their overlap gains: by up to 1.15 with two ranks on far cores, by up to 2.4
// where ranks take turns on a core and every flag means a change of rank.
constexpr std::size_t kPieceLeast = 32768;
constexpr std::size_t kPieceMost = 131072;

std::size_t quarter(const Payload& payload) {
  return std::clamp(class_bytes(payload) / 4, kPieceLeast, kPieceMost);
}

// Segments of 256 KiB of a rank's share: one is reduced while the next is on the wire.
Tuning segments(std::size_t share, std::size_t segment, int ranks) {
  const auto most = static_cast<std::uint32_t>(std::clamp(4096 / ranks, 1, 64));
  const std::uint32_t pieces = pieces_of(share, segment, most);
  return {pieces, 2, 1};
}

bool in_turn(const Topology& topology, const Payload& payload, bool once_per_level) {
  return messages(topology, payload) && (!payload.rounds || topology.ranks() == 2 ||
                                         (topology.ranks() > kOperandsMax && !once_per_level));
}

}  // namespace

double mib(const Payload& payload) {
  return static_cast<double>(payload.bytes) / kMib;
}

bool one_node(const Topology& topology, const Payload&) {
  return topology.one_mapped_node() && topology.ranks() <= kOperandsMax;
}

bool fits_line(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) && class_bytes(payload) <= kLineBytes;
}

bool other_block_fits_line(const Topology& topology, const Payload& payload) {
  return topology.ranks() == 2 && fits_line(topology, payload);
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

bool messages_at_once(const Topology& topology, const Payload& payload) {
  return messages(topology, payload) && topology.ranks() <= kOperandsMax;
}

bool several_nodes(const Topology& topology, const Payload&) {
  return topology.nodes() >= 2 && topology.mapped_all() && topology.ranks() <= kMessageRanksMax &&
         topology.nodes() <= kOperandsMax && topology.locals_max() <= kOperandsMax;
}

bool leaders_fit_slot(const Topology& topology, const Payload& payload) {
  return several_nodes(topology, payload) && 2 * align_line(class_bytes(payload)) <= kSlotBytes;
}

bool leaders_double(const Topology& topology, const Payload& payload) {
  return many_nodes(topology, payload) && 2 * align_line(class_bytes(payload)) <= kSlotBytes;
}

Tuning at_once(const Topology&, const Payload&) {
  return {};
}

Tuning staged_whole(const Topology&, const Payload& payload) {
  return in_pieces(payload, quarter(payload), 6, 6, 2);
}

Tuning staged_to_reduce(const Topology&, const Payload& payload) {
  const std::size_t piece = std::clamp(class_bytes(payload) / 4, kPieceLeast / 2, kPieceMost);
  return in_pieces(payload, piece, 6, 4, 2);
}

bool stages_whole(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) && stage_holds(payload, staged_whole(topology, payload), 1);
}

// Pieces of a block: a rank reads, or shows, one of every block at a time. They are smaller where
// all blocks of the slots would not fit in a rank's staging.
Tuning staged_blocks(const Topology& topology, const Payload& payload) {
  const std::size_t ranks = std::max<std::size_t>(ranks_of(topology), 2);
  const std::size_t piece = std::max(quarter(payload) * 2 / ranks, kPieceLeast);
  const std::size_t room = std::max<std::size_t>(kStageBytesMax / (8 * ranks), 4096);
  return in_pieces(payload, std::min(piece, room), ranks_of(topology) + 5, 6, 2);
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

bool loads(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) && topology.ranks() > 1 && payload.mapped && payload.even;
}

bool pulls(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) && topology.pulls() && topology.ranks() > 1 && payload.even;
}

// Slices that leave room in an L2 cache for those of all ranks.
Tuning exposed_slices(const Topology& topology, const Payload& payload) {
  return in_pieces(payload, kPieceMost * ranks_of(topology), 2 * ranks_of(topology) + 3, 1, 0);
}

Tuning exposed_blocks(const Topology& topology, const Payload& payload) {
  return in_pieces(payload, kPieceMost, ranks_of(topology) + 2, 1, 0);
}

Tuning ring_whole(const Topology& topology, const Payload& payload) {
  const std::size_t ranks = static_cast<std::size_t>(topology.ranks());
  return segments(class_bytes(payload) / ranks, 262144, topology.ranks());
}

Tuning ring_blocks(const Topology& topology, const Payload& payload) {
  return segments(class_bytes(payload), 262144, topology.ranks());
}

Tuning tree_pieces(const Topology&, const Payload& payload) {
  return in_pieces(payload, 262144, 16, 4, 1);
}

// Chunks under way between nodes. Where there are many, more of them: a credit waits behind the
// data that rails have queued, and with two chunks a faster rail has nothing to send meanwhile.
// With few, that would only put off the copies of the results.
constexpr std::uint32_t kManyChunks = 32;

// Data of a rank that leave without asking the receiver, in two messages at most: with more of
// them, asking costs less.
constexpr std::size_t kUnaskedBytes = 8192;  // as kEagerBytes: no transport is seen here

Tuning lanes(const Topology& topology, const Payload& payload) {
  const std::size_t unasked = kUnaskedBytes * static_cast<std::size_t>(topology.locals_min());
  const std::size_t chunk = class_bytes(payload) <= 2 * unasked
                                ? unasked
                                : std::clamp<std::size_t>(class_bytes(payload) / 8, 131072, 524288);
  const std::size_t steps = static_cast<std::size_t>(6 * topology.nodes() + topology.locals_max());
  Tuning tuning = in_pieces(payload, chunk, steps + 10, 4, 1);
  const bool many = tuning.pieces >= kManyChunks;
  tuning.slots = many ? 8 : 4;
  tuning.lead = many ? 5 : 1;
  return tuning;
}

// Parts of a slice that are worth a message.
constexpr std::size_t kPartLeast = 4096;

// Rounds that halve `bytes` of a slice.
std::uint32_t halvings_of(std::size_t bytes, std::size_t nodes) {
  const std::size_t parts = std::clamp<std::size_t>(bytes / kPartLeast, 1, std::bit_floor(nodes));
  return static_cast<std::uint32_t>(std::bit_width(parts)) - 1;
}

Tuning halving_lanes(const Topology& topology, const Payload& payload) {
  const std::size_t nodes = static_cast<std::size_t>(topology.nodes());
  const std::size_t most = std::clamp<std::size_t>(nodes << 16, 524288, kStageBytesMax / 4);
  const std::size_t chunk = std::clamp<std::size_t>(class_bytes(payload) / 8, 131072, most);
  const auto rounds = static_cast<std::size_t>(std::bit_width(nodes));
  Tuning tuning = in_pieces(payload, chunk, 6 * rounds + 14, 4, 1);
  tuning.slots = 4;
  tuning.lead = 1;
  const std::size_t slice =
      class_bytes(payload) / tuning.pieces / static_cast<std::size_t>(topology.locals_min());
  tuning.halvings = halvings_of(slice, nodes);
  return tuning;
}

bool stages_halving_lanes(const Topology& topology, const Payload& payload) {
  return many_nodes(topology, payload) && stage_holds(payload, halving_lanes(topology, payload), 1);
}

bool stages_lanes(const Topology& topology, const Payload& payload) {
  return several_nodes(topology, payload) && stage_holds(payload, lanes(topology, payload), 1);
}

// A whole buffer of this many bytes a shard goes in pieces of 128 to 512 KiB, by shards.
Tuning shard_pieces(const Topology& topology, const Payload& payload, std::size_t steps) {
  const std::size_t shards = shards_of(topology, payload.shards);
  const std::size_t whole =
      std::clamp<std::size_t>(class_bytes(payload) * shards / 8, 131072, 524288);
  return in_pieces(payload, std::max(whole / shards, kPartLeast), steps, 4, 1);
}

bool lanes_of_shards(const Topology& topology, const Payload& payload) {
  const auto shards = static_cast<int>(shards_of(topology, payload.shards));
  if (topology.locals_min() != shards || topology.locals_max() != shards) {
    return false;
  }
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    if (rank % shards != topology.local_of(rank)) {
      return false;
    }
  }
  return true;
}

Tuning node_shards(const Topology& topology, const Payload& payload) {
  const int steps = 3 * topology.nodes() + topology.locals_max() + 8;
  return shard_pieces(topology, payload, static_cast<std::size_t>(steps));
}

Tuning halving_shards(const Topology& topology, const Payload& payload) {
  const auto nodes = static_cast<std::size_t>(topology.nodes());
  const auto locals = static_cast<std::size_t>(topology.locals_max());
  const auto rounds = static_cast<std::size_t>(std::bit_width(nodes));
  Tuning tuning = shard_pieces(topology, payload, 6 * rounds + locals + 10);
  tuning.halvings = halvings_of(class_bytes(payload) / tuning.pieces, nodes);
  return tuning;
}

bool exchanges_shards(const Topology& topology, const Payload& payload) {
  return several_nodes(topology, payload) && lanes_of_shards(topology, payload) &&
         stage_holds(payload, node_shards(topology, payload), shards_of(topology, payload.shards));
}

bool halves_shards(const Topology& topology, const Payload& payload) {
  return many_nodes(topology, payload) && lanes_of_shards(topology, payload) &&
         stage_holds(payload, halving_shards(topology, payload),
                     shards_of(topology, payload.shards));
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

Tuning star_pieces(const Topology& topology, const Payload& payload) {
  return in_pieces(payload, 262144, static_cast<std::size_t>(topology.nodes()) + 5, 4, 1);
}

bool stages_star(const Topology& topology, const Payload& payload) {
  return several_nodes(topology, payload) &&
         stage_holds(payload, star_pieces(topology, payload), 1);
}

Tuning root_pieces(const Topology& topology, const Payload& payload) {
  return in_pieces(payload, 262144, ranks_of(topology) + 2, 2, 1);
}

Tuning staged_to_root(const Topology& topology, const Payload& payload) {
  return in_pieces(payload, quarter(payload), ranks_of(topology) + 5, 4, 2);
}

bool stages_to_root(const Topology& topology, const Payload& payload) {
  return one_node(topology, payload) && stage_holds(payload, staged_to_root(topology, payload), 1);
}

bool all_reduces_in_turn(const Topology& topology, const Payload& payload) {
  return in_turn(topology, payload, stages_lanes(topology, payload));
}

bool scatters_in_turn(const Topology& topology, const Payload& payload) {
  return in_turn(topology, payload, stages_node_blocks(topology, payload));
}

bool reduces_in_turn(const Topology& topology, const Payload& payload) {
  return in_turn(topology, payload, stages_star(topology, payload));
}

bool stages_reduce_tree(const Topology& topology, const Payload& payload) {
  return nodes_in_turn(topology, payload) && stages_tree(topology, payload);
}

bool exchange_fits_line(const Topology& topology, const Payload& payload) {
  return !payload.unknown && other_block_fits_line(topology, payload);
}

bool exchange_fits_slot(const Topology& topology, const Payload& payload) {
  return !payload.unknown && blocks_fit_slot(topology, payload);
}

bool stages_exchange(const Topology& topology, const Payload& payload) {
  return !payload.unknown && stages_blocks(topology, payload);
}

bool exchanges_messages(const Topology& topology, const Payload& payload) {
  return !payload.unknown && messages(topology, payload);
}

}  // namespace isthmus
