#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "kernels/binned.h"

namespace isthmus {

// The kernels of binned sums of one SIMD target, by the type of a number. Internal to kernels/ and
// its tests. Plain data; filling one asks Highway for the chosen target, any thread.
struct BinnedTable {
  BinnedKernels narrow[kDTypeCount] = {};  // of float64 there are none
  BinnedKernels wide[kDTypeCount] = {};
  BinnedKernels widest[kDTypeCount] = {};
  BinnedKernels mean[kDTypeCount] = {};  // of integers, in 64 bits

  BinnedKernels& narrow_of(DType dtype) { return narrow[static_cast<std::size_t>(dtype)]; }
};

BinnedTable binned_scalar_table();

// The table for the target that Highway chooses now.
BinnedTable resolve_binned_table();

}  // namespace isthmus
