#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace isthmus {

// Element-wise reductions over up to kReduceSourcesMax operands: the one place where numbers are
// combined. Pure functions on the caller's memory: no allocation, no lock, no I/O, any thread.
//
// The rules, the same bits on every SIMD target, at every count and alignment:
//  - Operands are combined in source order, 0..n-1, per element. float16 and bfloat16 accumulate in
//    float32 and are rounded once, at the end, to nearest even; the others accumulate in their own
//    type. Integers wrap. AVG of int32 and uint8 accumulates in 64 bits.
//  - AVG divides the sum by `divisor` (>= 1) before the rounding; integers truncate toward zero,
//    then wrap. The other operations ignore the divisor.
//  - MIN and MAX: a NaN among the operands gives NaN; -0 is less than +0. Both therefore do not
//    depend on the order of the operands.
//  - A NaN result is always the positive quiet NaN without payload (0x7FC00000, 0x7E00, 0x7FC0,
//    0x7FF8000000000000): which payload survives an addition differs between processors.
//  - One source (and for AVG a divisor of 1) is a copy, bit for bit, NaN payloads included.
// Denormals follow the calling thread's MXCSR: with flush-to-zero set, float32 sums flush.

// Most source operands of one reduce call.
inline constexpr int kReduceSourcesMax = 64;

// How a reduce ends.
struct ReduceScale {
  std::int32_t divisor = 1;  // AVG: true division at the end (integers truncate toward zero)
};

// dst[i] = op over k of sources[k][i]. `count` in elements. dst may be equal to any source (exact
// alias), but must not partly overlap one. Any alignment, also none of the element's.
using ReduceFn = void (*)(void* dst, const void* const* sources, int source_count,
                          std::size_t count, std::int32_t divisor);

// The kernel for (dtype, op), resolved once for this processor: keep it in the schedule and call it
// directly. Never null for reducible dtypes; null for DType::kByte.
ReduceFn reduce_kernel(DType dtype, RedOp op);

// Scalar reference with the same bits, for tests and for `--check` in perf. dtype is reducible.
void reduce_reference(DType dtype, RedOp op, void* dst, const void* const* sources,
                      int source_count, std::size_t count, std::int32_t divisor);

}  // namespace isthmus
