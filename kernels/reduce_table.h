#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/reduce.h"

namespace isthmus {

// The kernels of one SIMD target, by dtype and op. Internal to kernels/ and its tests. Plain data;
// filling one asks Highway for the chosen target, any thread.
struct ReduceTable {
  ReduceFn fn[kDTypeCount][kRedOpCount] = {};
  ScaleFn scale[kDTypeCount] = {};

  ReduceFn& at(DType dtype, RedOp op) {
    return fn[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)];
  }

  ReduceFn at(DType dtype, RedOp op) const {
    return fn[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)];
  }

  ScaleFn scale_of(DType dtype) const { return scale[static_cast<std::size_t>(dtype)]; }
};

// The scalar kernels of all dtypes.
ReduceTable reference_table();

// One family per translation unit, so that they compile side by side. Each replaces the scalar
// kernels it has better ones for.
void fill_float_kernels(ReduceTable& table);
void fill_complex_kernels(ReduceTable& table);
void fill_half_kernels(ReduceTable& table);
void fill_float8_kernels(ReduceTable& table);
void fill_wide_integer_kernels(ReduceTable& table);
void fill_narrow_integer_kernels(ReduceTable& table);

// The table for the target that Highway chooses now. Tests choose another and resolve again.
ReduceTable resolve_reduce_table();

// Bits of the Highway targets this library was compiled for (hwy/detect_targets.h).
std::int64_t reduce_compiled_targets();

}  // namespace isthmus
