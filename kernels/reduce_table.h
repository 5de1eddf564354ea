#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/element.h"
#include "kernels/reduce.h"

namespace isthmus {

// The kernels of one SIMD target, by dtype and op. Internal to kernels/ and its tests. Plain data;
// filling one asks Highway for the chosen target, any thread.
struct ReduceTable {
  ReduceFn fn[kDTypeCount][kRedOpCount] = {};

  ReduceFn& at(DType dtype, RedOp op) {
    return fn[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)];
  }

  ReduceFn at(DType dtype, RedOp op) const {
    return fn[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)];
  }
};

// A ReduceFn without SIMD.
template <DType kType, RedOp kOp>
void reduce_scalar(void* dst, const void* const* sources, int source_count, std::size_t count,
                   std::int32_t divisor) {
  check_reduce<kOp>(source_count, divisor);
  reduce_elements<kType, kOp>(dst, sources, source_count, count, divisor);
}

// The scalar kernels of one dtype.
template <DType kType>
void fill_scalar_kernels(ReduceTable& table) {
  table.at(kType, RedOp::kSum) = &reduce_scalar<kType, RedOp::kSum>;
  table.at(kType, RedOp::kAvg) = &reduce_scalar<kType, RedOp::kAvg>;
  table.at(kType, RedOp::kMin) = &reduce_scalar<kType, RedOp::kMin>;
  table.at(kType, RedOp::kMax) = &reduce_scalar<kType, RedOp::kMax>;
  table.at(kType, RedOp::kProd) = &reduce_scalar<kType, RedOp::kProd>;
}

// One family per translation unit, so that they compile side by side.
void fill_float_kernels(ReduceTable& table);
void fill_half_kernels(ReduceTable& table);
void fill_integer_kernels(ReduceTable& table);

// The table for the target that Highway chooses now. Tests choose another and resolve again.
ReduceTable resolve_reduce_table();

// Bits of the Highway targets this library was compiled for (hwy/detect_targets.h).
std::int64_t reduce_compiled_targets();

}  // namespace isthmus
