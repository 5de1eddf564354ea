#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/float16.h"
#include "kernels/reduce.h"

namespace isthmus {

// What one element of each dtype means: its storage, the type it accumulates in, and the scalar
// operations of reduce.h. The reference, the target without SIMD and the shortest calls use it.
// Internal to kernels/. Pure functions, any thread.

template <class StorageType, class AccumulatorType>
struct PlainElement {
  using Storage = StorageType;
  using Accumulator = AccumulatorType;

  static Accumulator widen(Storage value) { return static_cast<Accumulator>(value); }

  static Storage narrow(Accumulator value) { return static_cast<Storage>(value); }
};

struct HalfElement {
  using Storage = std::uint16_t;
  using Accumulator = float;

  static float widen(Storage value) { return float_from_half(value); }

  static Storage narrow(float value) { return half_from_float(value); }
};

struct BFloat16Element {
  using Storage = std::uint16_t;
  using Accumulator = float;

  static float widen(Storage value) { return float_from_bfloat16(value); }

  static Storage narrow(float value) { return bfloat16_from_float(value); }
};

// Integers add and multiply as unsigned numbers, so that wrapping is defined, are compared as they
// are, and are averaged in 64 bits.
template <class T, class Wrapping, RedOp kOp>
using IntegerElement =
    PlainElement<T, std::conditional_t<kOp == RedOp::kSum || kOp == RedOp::kProd, Wrapping,
                                       std::conditional_t<kOp == RedOp::kAvg, std::int64_t, T>>>;

template <DType kType, RedOp kOp>
struct ElementOf;

template <RedOp kOp>
struct ElementOf<DType::kFloat32, kOp> : PlainElement<float, float> {};

template <RedOp kOp>
struct ElementOf<DType::kFloat64, kOp> : PlainElement<double, double> {};

template <RedOp kOp>
struct ElementOf<DType::kFloat16, kOp> : HalfElement {};

template <RedOp kOp>
struct ElementOf<DType::kBFloat16, kOp> : BFloat16Element {};

template <RedOp kOp>
struct ElementOf<DType::kInt32, kOp> : IntegerElement<std::int32_t, std::uint32_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kInt64, kOp> : IntegerElement<std::int64_t, std::uint64_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kUint8, kOp> : IntegerElement<std::uint8_t, std::uint32_t, kOp> {};

// The lesser of two; -0 is less than +0; NaN if either is NaN.
template <class T>
T element_min(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) {
      return std::numeric_limits<T>::quiet_NaN();
    }
    if (a == b) {
      return std::signbit(a) ? a : b;
    }
  }
  return b < a ? b : a;
}

// The greater of two; +0 is greater than -0; NaN if either is NaN.
template <class T>
T element_max(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) {
      return std::numeric_limits<T>::quiet_NaN();
    }
    if (a == b) {
      return std::signbit(a) ? b : a;
    }
  }
  return a < b ? b : a;
}

template <RedOp kOp, class T>
T element_combine(T a, T b) {
  if constexpr (kOp == RedOp::kMin) {
    return element_min(a, b);
  } else if constexpr (kOp == RedOp::kMax) {
    return element_max(a, b);
  } else if constexpr (kOp == RedOp::kProd) {
    return a * b;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    // The sum of an AVG; only int64 elements can wrap here.
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class T>
T element_load(const void* base, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void element_store(void* base, std::size_t i, T value) {
  std::memcpy(static_cast<char*>(base) + i * sizeof(T), &value, sizeof(T));
}

// What every ReduceFn checks of its arguments.
template <RedOp kOp>
void check_reduce(int source_count, std::int32_t divisor) {
  ISTHMUS_CHECK(source_count >= 1 && source_count <= kReduceSourcesMax,
                "a reduce takes 1 to kReduceSourcesMax sources");
  if constexpr (kOp == RedOp::kAvg) {
    ISTHMUS_CHECK(divisor >= 1, "an AVG divides by at least 1");
  }
}

// A ReduceFn, one element at a time, that does not check.
template <DType kType, RedOp kOp>
void reduce_elements(void* dst, const void* const* sources, int source_count, std::size_t count,
                     std::int32_t divisor) {
  using Element = ElementOf<kType, kOp>;
  using Storage = typename Element::Storage;
  using Accumulator = typename Element::Accumulator;
  const bool divide = kOp == RedOp::kAvg && divisor != 1;
  if (source_count == 1 && !divide) {
    if (dst != sources[0] && count > 0) {
      std::memcpy(dst, sources[0], count * sizeof(Storage));
    }
    return;
  }
  // The first two are named so that the shortest calls, one or two elements of two ranks, load
  // their pointers once: for all the compiler knows, a store through dst could change the list.
  const void* const first = sources[0];
  const void* const second = source_count > 1 ? sources[1] : nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    Accumulator sum = Element::widen(element_load<Storage>(first, i));
    if (second != nullptr) {
      sum = element_combine<kOp>(sum, Element::widen(element_load<Storage>(second, i)));
    }
    for (int k = 2; k < source_count; ++k) {
      sum = element_combine<kOp>(sum, Element::widen(element_load<Storage>(sources[k], i)));
    }
    if (divide) {
      sum = static_cast<Accumulator>(sum / static_cast<Accumulator>(divisor));
    }
    if constexpr (std::is_floating_point_v<Accumulator>) {
      sum = sum == sum ? sum : std::numeric_limits<Accumulator>::quiet_NaN();
    }
    element_store<Storage>(dst, i, Element::narrow(sum));
  }
}

}  // namespace isthmus
