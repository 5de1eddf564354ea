#pragma once

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// Groups of one rank: a copy where there is an input. Every reduction of one operand is that
// operand.
template <OpKind kOp>
Result<Schedule> alone(const Request& request) {
  constexpr const OpTraits& kTraits = op_traits(kOp);
  Builder b = start_schedule(request, kOp, "alone", {kTraits.ranked, 1, 0}, false);
  b.in_order();
  if (kTraits.input != Party::kNobody) {
    b.copy(Builder::output(0), Builder::input(0), 0, 1);
  }
  return b.build();
}

}  // namespace isthmus
