#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/estimate.h"
#include "collectives/tuning_table.h"

namespace isthmus {

// An algorithm and its tuning: with the rank and the root, all that a schedule depends on.
struct Choice {
  const Algorithm* algorithm = nullptr;
  Tuning tuning;

  bool operator==(const Choice&) const = default;
};

// The time that an applicable algorithm is expected to take: the estimate from the topology's
// costs, times what was measured of the algorithm itself, where it was (`tuned` not null, one
// node).
struct Prediction {
  Estimate parts;
  bool measured = false;  // the algorithm itself; the costs may be measured without it

  double us() const { return parts.total_us(); }
};

Prediction predict(const Algorithm& algorithm, const Topology& topology, const Payload& payload,
                   const TunedRanks* tuned);

// Algorithms with messages are not considered for ranks that share memory, where others fit.
constexpr bool sends_messages(const Algorithm& algorithm) {
  return algorithm.cost_us != nullptr;
}

// The payload of which all sizes of this one's class get the answer.
Payload largest_of_class(const Payload& payload);

// The applicable algorithm with the least prediction. Pure: the same answer on every rank, and for
// all sizes of a size class, so the answer may be cached by (op, size class, payload.rounds).
//
// `forced` (ISTHMUS_ALGO) names an algorithm: taken for operations that have one of that name, and
// ignored for the others. Fails with kInvalidArgument when no operation has it (the message names
// the nearest name) or it does not fit the topology or the size.
Result<Choice> select_algorithm(const Topology& topology, OpKind op, const Payload& payload,
                                std::string_view forced, const TunedRanks* tuned = nullptr);

}  // namespace isthmus
