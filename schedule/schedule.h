#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/geometry.h"
#include "schedule/operation.h"
#include "schedule/step.h"

namespace isthmus {

// One rank's part of a collective: steps, and the dependencies between them. Immutable once built
// by Builder; holds no pointer, so it can be cached, printed, hashed, proved, costed and simulated.
struct Schedule {
  OpKind op = OpKind::kBarrier;
  std::uint32_t rank = 0;    // group rank these steps belong to
  std::uint32_t ranks = 1;   // size of the group
  std::uint32_t local = 0;   // this rank among the ranks of its node
  std::uint32_t locals = 1;  // ranks of this node in the group
  std::uint32_t root = 0;
  std::string algorithm;
  Partition partition;

  // Units that the run must provide; 0 when unused.
  std::uint32_t scratch_units = 0;
  std::uint32_t slot_units = 0;
  std::uint32_t stage_units = 0;
  bool uses_line = false;

  // How steps reach the exposed buffers of other ranks; kNone where none does.
  Exposure exposure = Exposure::kNone;

  std::vector<Step> steps;

  // True when the steps are to be run one after another in the order given: mapped schedules,
  // whose pipelining is in their order. Otherwise steps run as soon as their dependencies have.
  bool in_order = true;

  // Dependencies as compressed rows: step i releases releases[release_begin[i] .. [i + 1]), and
  // waits for wait_count[i] others. Empty when in_order.
  std::vector<std::uint32_t> release_begin;
  std::vector<std::uint32_t> releases;
  std::vector<std::uint32_t> wait_count;

  // The block of the whole data that is this rank's, where blocks are ranks'.
  std::uint32_t own_block() const { return rank % partition.blocks; }

  // Marks of the caller's input or output buffer; 0 where this rank has none.
  std::uint32_t caller_marks(Space space) const;

  std::uint64_t hash() const;

  // Many lines, one per step: what `isthmus schedule show` prints.
  std::string to_string() const;
};

}  // namespace isthmus
