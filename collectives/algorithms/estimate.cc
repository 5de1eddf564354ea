#include "collectives/algorithms/estimate.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "schedule/cost.h"

namespace isthmus {

namespace {

// The tuning with other numbers of pieces: never more slots and lead than they need.
Tuning with_pieces(Tuning tuning, std::uint32_t pieces) {
  tuning.pieces = pieces;
  tuning.slots = std::min(tuning.slots, pieces);
  tuning.lead = std::min(tuning.lead, pieces - 1);
  return tuning;
}

// Pieces from which on every further one brings the same steps: all slots are in use.
std::uint32_t steady_pieces(const Tuning& tuning) {
  return std::bit_ceil(std::max(tuning.slots, 1U));
}

// What the schedule of few pieces does with all the bytes: pieces change its waits only.
RankCost cost_with(const Algorithm& algorithm, const Topology& topology, const Tuning& tuning,
                   std::uint32_t rank, std::size_t bytes) {
  const Result<Schedule> schedule =
      algorithm.build({.topology = topology, .rank = rank, .root = 0, .tuning = tuning});
  if (!schedule.ok()) {
    RankCost never;
    never.copy_us = std::numeric_limits<double>::infinity();
    return never;
  }
  return cost_of(*schedule, topology, bytes);
}

// One rank's work, its waits if nothing is pipelined, and all its waits.
struct RankPart {
  RankCost cost;
  double awaits_at_once = 0.0;
  double awaits = 0.0;
};

RankPart part_of(const Algorithm& algorithm, const Topology& topology, const Tuning& tuning,
                 std::uint32_t rank, std::size_t bytes) {
  RankPart part;
  part.cost = cost_with(algorithm, topology, with_pieces(tuning, 1), rank, bytes);
  part.awaits_at_once = part.cost.awaits;
  part.awaits = count_awaits(algorithm, topology, tuning, rank);
  return part;
}

// A root and the others do different things, one beside the other: the slower side's time, and the
// other's for one piece. Where they share processors all of it is done in turn.
void add_rooted_work(const RankPart& root, const RankPart& other, const Topology& topology,
                     std::uint32_t pieces, Estimate* out) {
  const double ranks = topology.ranks();
  double of_root = 1.0 / ranks;
  double of_other = (ranks - 1.0) / ranks;
  if (topology.node_costs().sharing <= 1.0) {
    const bool root_slower = root.cost.core_us() >= other.cost.core_us();
    of_root = root_slower ? 1.0 : 1.0 / pieces;
    of_other = root_slower ? 1.0 / pieces : 1.0;
  }
  out->copies_us = of_root * root.cost.copy_us + of_other * other.cost.copy_us;
  out->reduces_us = of_root * root.cost.reduce_us + of_other * other.cost.reduce_us;
}

double flags_us(const RankPart& part, const Topology& topology, const Tuning& tuning) {
  const NodeCosts& costs = topology.node_costs();
  const double wait_us = costs.wait_us(topology.ranks());
  if (costs.sharing > 1.0) {
    // A rank gets as many pieces ahead as it may before it must let the others run.
    const bool staged = part.awaits > part.awaits_at_once;
    const double turns = staged ? 1.0 + (tuning.pieces - 1.0) / std::max(tuning.lead, 1U) : 1.0;
    return wait_us * part.awaits_at_once * turns;
  }
  return wait_us * part.awaits_at_once + costs.look_us * (part.awaits - part.awaits_at_once);
}

}  // namespace

double count_awaits(const Algorithm& algorithm, const Topology& topology, const Tuning& tuning,
                    std::uint32_t rank) {
  const auto awaits = [&](std::uint32_t pieces) {
    return static_cast<double>(
        cost_with(algorithm, topology, with_pieces(tuning, pieces), rank, 0).awaits);
  };
  const std::uint32_t steady = steady_pieces(tuning);
  if (tuning.pieces <= 2 * steady) {
    return awaits(tuning.pieces);
  }
  const double first = awaits(steady);
  return first + (awaits(2 * steady) - first) * (tuning.pieces - steady) / steady;
}

Estimate estimate(const Algorithm& algorithm, const Topology& topology, const Payload& payload) {
  Estimate out;
  if (algorithm.cost_us != nullptr) {
    out.messages_us = algorithm.cost_us(topology, payload);
    return out;
  }
  const Tuning tuning = algorithm.tune(topology, payload);
  const RankPart first = part_of(algorithm, topology, tuning, 0, payload.bytes);
  out.copies_us = first.cost.copy_us;
  out.reduces_us = first.cost.reduce_us;
  out.flags_us = flags_us(first, topology, tuning);
  if (op_traits(algorithm.op).rooted && topology.ranks() > 1) {
    const RankPart other = part_of(algorithm, topology, tuning, 1, payload.bytes);
    add_rooted_work(first, other, topology, tuning.pieces, &out);
    out.flags_us = std::max(out.flags_us, flags_us(other, topology, tuning));
  }
  return out;
}

}  // namespace isthmus
