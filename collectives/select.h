#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// An algorithm and its tuning: with the rank and the root, all that a schedule depends on.
struct Choice {
  const Algorithm* algorithm = nullptr;
  Tuning tuning;

  bool operator==(const Choice&) const = default;
};

// The cheapest applicable algorithm by its cost function, with the topology's link classes
// (built-in constants until something was measured). Pure: the same answer on every rank, and for
// all sizes of a size class, so the answer may be cached by (op, size class, payload.rounds).
//
// `forced` (ISTHMUS_ALGO) names an algorithm: taken for operations that have one of that name, and
// ignored for the others. Fails with kInvalidArgument when no operation has it (the message names
// the nearest name) or it does not fit the topology or the size.
Result<Choice> select_algorithm(const Topology& topology, OpKind op, const Payload& payload,
                                std::string_view forced);

}  // namespace isthmus
