#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "kernels/reduce.h"

namespace isthmus {

// Sums of floating-point numbers that do not depend on the order or the grouping of the additions.
// docs/determinism.md has the definition and the bounds on the error.
//
// The exponent range is cut into bins of `width` bits. A binned sum is the highest bin that any
// operand reached and two integers: the sum of all operands' parts in that bin, and in the one
// below. An operand is split between the bins that it touches, once, by rounding to nearest. Where
// a higher bin comes up, the parts below the lower of its two are dropped. What is in the end in
// the two bins is therefore the exact integer sum of the same parts, whatever was added first.
//
//   narrow  8 bytes: 4 bits say the bin, 60 hold (upper << 30) + lower, both signed
//   wide   16 bytes: two signed integers of 61 bits, and 3 bits of the bin in each word
//
// The other reductions that DETERMINISTIC asks for need none of this: integers, MIN, MAX and
// bitwise ones give the same bits in any order, but for means of narrow integers, which are summed
// in 64 bits here.
//
// Pure functions on the caller's memory: no allocation, no lock, any thread, any alignment. They do
// not depend on the thread's flush-to-zero and denormals-are-zero flags.

// sums[i] = src[i]. `count` in numbers: a complex element is two.
using BinFn = void (*)(void* sums, const void* src, std::size_t count);

// dst[i] = sums[i] / divisor, rounded once, to nearest even.
using UnbinFn = void (*)(void* dst, const void* sums, std::size_t count, std::int32_t divisor);

struct BinnedKernels {
  std::size_t number_bytes = 0;  // of a number in the caller's buffer
  std::size_t sum_bytes = 0;     // of its binned sum
  BinFn bin = nullptr;
  ReduceFn add = nullptr;  // count in sums; the divisor is ignored
  UnbinFn unbin = nullptr;
};

// Numbers of one element: 2 for complex types.
constexpr std::size_t numbers_of(DType dtype) {
  return dtype_kind(dtype) == DTypeKind::kComplex ? 2 : 1;
}

// Whether the result of a reduction depends on the order of its operands, so that it goes by binned
// sums where that must not be. PROD does too, and has none.
constexpr bool order_matters(DType dtype, RedOp op) {
  const DTypeKind kind = dtype_kind(dtype);
  const bool sums = op == RedOp::kSum || op == RedOp::kAvg || op == RedOp::kPremulSum;
  const bool real = kind == DTypeKind::kFloat || kind == DTypeKind::kComplex;
  return (real && (sums || op == RedOp::kProd)) ||
         (kind == DTypeKind::kInteger && op == RedOp::kAvg && dtype_bytes(dtype) < 8);
}

// Most operands of one sum, of all ranks together.
inline constexpr std::uint64_t kBinnedOperandsMax = 1'000'000;

// Why a reduction of so many operands has no binned sums, as the end of a sentence; else empty.
std::string why_not_binned(DType dtype, RedOp op, std::uint64_t operands);

// The kernels where why_not_binned() is empty and order_matters(). The format depends on dtype and
// number of operands only; it is narrow up to 64 operands of float32, 512 of narrower types.
BinnedKernels binned_kernels(DType dtype, RedOp op, std::uint64_t operands);

// The same in scalar code: for tests.
BinnedKernels binned_reference(DType dtype, RedOp op, std::uint64_t operands);

// A rank's operands, combined before they go to others.
struct Operands {
  const void* const* sources = nullptr;
  std::size_t source_count = 0;
  const double* factor = nullptr;  // each is multiplied by it and rounded to the dtype; null: none
};

// sums[i] = the binned sum of all sources[k][i]. `count` in elements.
void bin_operands(const BinnedKernels& kernels, DType dtype, const Operands& operands, void* sums,
                  std::size_t count);

// dst[i] = op over k of sources[k][i], as reduce.h says, in their order; AVG only sums. dst may be
// any of the sources, all of it. `count` in elements.
void combine_operands(DType dtype, RedOp op, const Operands& operands, void* dst,
                      std::size_t count);

// dst[i] = op over k of sources[k][i], divided by their number for AVG; by binned sums where
// `binned` is given. dst may be any of the sources, all of it. `count` in elements.
void reduce_operands(const BinnedKernels* binned, DType dtype, RedOp op, const Operands& operands,
                     void* dst, std::size_t count);

}  // namespace isthmus
