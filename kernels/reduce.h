#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace isthmus {

// Element-wise reductions over up to kReduceSourcesMax operands: the one place where numbers are
// combined. Pure functions on the caller's memory: no allocation, no lock, no I/O, any thread.
//
// The rules, the same bits on every SIMD target, at every count and alignment:
//  - Operands are combined in source order, 0..n-1, per element. Floating-point types of 8 and 16
//    bits accumulate in float32 and are rounded once, at the end, to nearest even; the others
//    accumulate in their own type. A float8 result that is too large is what float8.h says.
//    Integers wrap.
//  - AVG divides the sum by `divisor` (>= 1) before the rounding; integers of less than 64 bits sum
//    in 64, truncate toward zero, then wrap. The other operations ignore the divisor.
//  - bool: what is not 0 is true and a result is 0 or 1; SUM and MAX are "or", PROD and MIN "and".
//  - Complex numbers: a product is (ac - bd) + (ad + bc)i, whatever is infinite or NaN.
//  - PREMUL_SUM is SUM: its operands were multiplied before, see scale_kernel.
//  - MIN and MAX: a NaN among the operands gives NaN; -0 is less than +0. Both therefore do not
//    depend on the order of the operands.
//  - A NaN result is always the positive quiet NaN without payload (0x7FC00000, 0x7E00, 0x7FC0,
//    0x7FF8000000000000, float8 0x7F or, fnuz, 0x80): which payload survives an addition differs
//    between processors. Each part of a complex number on its own.
//  - One source (and for AVG a divisor of 1) is a copy, bit for bit, NaN payloads included.
// Denormals follow the calling thread's MXCSR: with flush-to-zero set, float32 sums flush.

// Most source operands of one reduce call.
inline constexpr int kReduceSourcesMax = 64;

// dst[i] = op over k of sources[k][i]. `count` in elements. dst may be equal to any source (exact
// alias), but must not partly overlap one. Any alignment, also none of the element's.
using ReduceFn = void (*)(void* dst, const void* const* sources, int source_count,
                          std::size_t count, std::int32_t divisor);

// The kernel for (dtype, op), resolved once for this processor: keep it in the schedule and call it
// directly. Null exactly where reducible(dtype, op) is false.
ReduceFn reduce_kernel(DType dtype, RedOp op);

// dst[i] = src[i] x factor, computed in the accumulator's type (to which the factor is rounded) and
// rounded to the dtype; a NaN becomes the one above. dst is src or apart from it. Any alignment.
using ScaleFn = void (*)(void* dst, const void* src, std::size_t count, double factor);

// What a rank does to its operand of a PREMUL_SUM. Null where reducible(dtype, kPremulSum) is
// false.
ScaleFn scale_kernel(DType dtype);

// Scalar references with the same bits, for tests and for `--check` in perf.
void reduce_reference(DType dtype, RedOp op, void* dst, const void* const* sources,
                      int source_count, std::size_t count, std::int32_t divisor);
void scale_reference(DType dtype, void* dst, const void* src, std::size_t count, double factor);

}  // namespace isthmus
