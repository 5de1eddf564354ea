#include <array>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/mapped.h"

namespace isthmus {

namespace {

constexpr std::size_t kLineBytes = 48;    // of payload in an announcement line
constexpr std::size_t kSlotBytes = 8192;  // of a group's slot: schedule/ does not see transport/
constexpr double kMib = 1048576.0;

// Bounds on pieces keep a schedule below 65,536 steps and its first build below 200 us or so.
constexpr std::uint32_t kPiecesMax = 4096;

std::size_t class_bytes(const Payload& payload) {
  return size_class_bytes(size_class(payload.bytes));
}

double mib(const Payload& payload) {
  return static_cast<double>(payload.bytes) / kMib;
}

// Of the class, so that all its sizes get one answer.
bool fits_line(const Topology& topology, const Payload& payload) {
  return topology.one_mapped_node() && class_bytes(payload) <= kLineBytes;
}

bool fits_slot(const Topology& topology, const Payload& payload) {
  return topology.one_mapped_node() && class_bytes(payload) <= kSlotBytes;
}

bool blocks_fit_slot(const Topology& topology, const Payload& payload) {
  const std::size_t ranks = static_cast<std::size_t>(topology.ranks());
  return topology.one_mapped_node() &&
         align_line(class_bytes(payload)) <= kSlotBytes / std::max<std::size_t>(ranks, 1);
}

bool one_node(const Topology& topology, const Payload&) {
  return topology.one_mapped_node();
}

Tuning at_once(const Topology&, const Payload&) {
  return {};
}

// Staged pieces: from 8 KiB, where a flag costs as much as the copy, to what four slots and two
// ranks' share of an L2 cache hold.
Tuning staged_whole(const Topology&, const Payload& payload) {
  const std::size_t piece = std::clamp<std::size_t>(class_bytes(payload) / 16, 8192, 65536);
  const std::uint32_t pieces = pieces_of(payload.bytes, piece, kPiecesMax);
  return {pieces, std::min(pieces, 4U), std::min(pieces - 1, 2U)};
}

Tuning staged_blocks(const Topology& topology, const Payload& payload) {
  const std::size_t ranks = static_cast<std::size_t>(topology.ranks());
  const std::size_t piece = std::clamp<std::size_t>(class_bytes(payload) / 8, 8192, 65536) * 2 /
                            std::max<std::size_t>(ranks, 2);
  const auto most = static_cast<std::uint32_t>(kPiecesMax * 2 / std::max<std::size_t>(ranks, 2));
  const std::uint32_t pieces =
      pieces_of(payload.bytes, std::max<std::size_t>(piece, 4096), std::max(most, 1U));
  return {pieces, std::min(pieces, 4U), std::min(pieces - 1, 2U)};
}

Tuning slices(const Topology& topology, const Payload& payload) {
  const std::size_t ranks = static_cast<std::size_t>(topology.ranks());
  const std::size_t chunk = std::clamp<std::size_t>(class_bytes(payload) / 8, 65536, 262144);
  const auto most = static_cast<std::uint32_t>(kPiecesMax * 4 / std::max<std::size_t>(ranks, 4));
  const std::uint32_t pieces = pieces_of(payload.bytes, chunk, std::max(most, 1U));
  return {pieces, std::min(pieces, 3U), std::min(pieces - 1, 1U)};
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

double slice_cost(const Topology& topology, const Payload& payload) {
  const double others = static_cast<double>(topology.ranks() - 1) / topology.ranks();
  return 4.0 * topology.inside().alpha_us +
         mib(payload) * (2.0 * others * topology.inside().beta_us_per_mib +
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

constexpr std::array kTable = {
    Algorithm{"line_barrier", OpKind::kBarrier, "one node: everyone's announcement line", one_node,
              at_once, shown_cost, line_barrier},
    Algorithm{"line_all_reduce", OpKind::kAllReduce,
              "one node, up to 48 bytes: data in the announcement line", fits_line, at_once,
              shown_cost, line_all_reduce},
    Algorithm{"slot_all_reduce", OpKind::kAllReduce,
              "one node, up to 8 KiB: data in the group's slot", fits_slot, at_once,
              reduce_all_cost, slot_all_reduce},
    Algorithm{"flat_all_reduce", OpKind::kAllReduce,
              "one node: everyone reads everyone's staged pieces", one_node, staged_whole,
              flat_cost, flat_all_reduce},
    Algorithm{"slice_all_reduce", OpKind::kAllReduce,
              "one node: everyone reduces one slice of each chunk", one_node, slices, slice_cost,
              slice_all_reduce},
    Algorithm{"line_all_gather", OpKind::kAllGather,
              "one node, blocks up to 48 bytes: data in the announcement line", fits_line, at_once,
              shown_cost, line_all_gather},
    Algorithm{"slot_all_gather", OpKind::kAllGather,
              "one node, blocks up to 8 KiB: data in the group's slot", fits_slot, at_once,
              gather_cost, slot_all_gather},
    Algorithm{"staged_all_gather", OpKind::kAllGather, "one node: through staging, piece by piece",
              one_node, staged_blocks, gather_cost, staged_all_gather},
    Algorithm{"slot_reduce_scatter", OpKind::kReduceScatter,
              "one node, all blocks within 8 KiB: data in the group's slot", blocks_fit_slot,
              at_once, scatter_cost, slot_reduce_scatter},
    Algorithm{"staged_reduce_scatter", OpKind::kReduceScatter,
              "one node: through staging, piece by piece", one_node, staged_blocks, scatter_cost,
              staged_reduce_scatter},
    Algorithm{"line_broadcast", OpKind::kBroadcast,
              "one node, up to 48 bytes: data in the announcement line", fits_line, at_once,
              shown_cost, line_broadcast},
    Algorithm{"slot_broadcast", OpKind::kBroadcast,
              "one node, up to 8 KiB: data in the group's slot", fits_slot, at_once, shown_cost,
              slot_broadcast},
    Algorithm{"staged_broadcast", OpKind::kBroadcast, "one node: through staging, piece by piece",
              one_node, staged_whole, staged_cost, staged_broadcast},
};

}  // namespace

std::span<const Algorithm> algorithms() {
  return kTable;
}

}  // namespace isthmus
