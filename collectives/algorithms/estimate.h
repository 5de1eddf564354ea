#pragma once

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// The time that an algorithm is expected to take, in parts that add up. Messages are estimated as a
// whole, by closed form.
struct Estimate {
  double flags_us = 0.0;   // waiting for other ranks' flags, the call included
  double copies_us = 0.0;  // on the core that is busy longest
  double reduces_us = 0.0;
  double messages_us = 0.0;

  double total_us() const { return flags_us + copies_us + reduces_us + messages_us; }

  bool operator==(const Estimate&) const = default;
};

// Of an applicable algorithm. Where its row has no closed form, its own schedule is counted: one
// for one piece, for what must be waited for, and two of few pieces, from which the waits of as
// many as the tuning wants follow exactly; so it takes a few microseconds whatever the size. Pure.
Estimate estimate(const Algorithm& algorithm, const Topology& topology, const Payload& payload);

// Waits in the schedule of `rank` by the tuning, root 0, as estimate() finds them without building
// it.
double count_awaits(const Algorithm& algorithm, const Topology& topology, const Tuning& tuning,
                    std::uint32_t rank);

}  // namespace isthmus
