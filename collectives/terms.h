#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "collectives/call.h"
#include "kernels/binned.h"

namespace isthmus {

// In what form the operands of a call travel: as the caller's elements, or, where the result must
// not depend on the order of additions, as binned sums. Pure, the same on all ranks.
struct Terms {
  bool binned = false;
  BinnedKernels kernels;          // if binned
  std::size_t element_bytes = 1;  // of what travels
  std::uint64_t operands = 1;     // of all ranks together

  // deterministic: ISTHMUS_DETERMINISTIC. The call is one that why_unbinnable() does not refuse.
  Terms(const Call& call, std::uint32_t ranks, bool deterministic);

  // Tells the formats apart that a call's dtype and reduction leave open.
  std::uint64_t key() const { return binned ? kernels.sum_bytes / 8 : 0; }
};

// Why a call cannot have the same bits in any order, as the end of a sentence; else empty.
std::string why_unbinnable(const Call& call, std::uint32_t ranks);

}  // namespace isthmus
