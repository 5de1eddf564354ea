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
#include "kernels/float8.h"
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

template <class Format>
struct Float8Element {
  using Storage = std::uint8_t;
  using Accumulator = float;

  static float widen(Storage value) { return float_from_float8<Format>(value); }

  static Storage narrow(float value) { return float8_from_float<Format>(value); }
};

struct BoolElement {
  using Storage = std::uint8_t;
  using Accumulator = bool;

  static bool widen(Storage value) { return value != 0; }

  static Storage narrow(bool value) { return value ? 1 : 0; }
};

// Two numbers side by side, as in memory.
template <class T>
struct ComplexNumber {
  T real;
  T imaginary;

  ComplexNumber operator+(const ComplexNumber& other) const {
    return {real + other.real, imaginary + other.imaginary};
  }

  ComplexNumber operator*(const ComplexNumber& other) const {
    return {real * other.real - imaginary * other.imaginary,
            real * other.imaginary + imaginary * other.real};
  }

  ComplexNumber operator*(T factor) const { return {real * factor, imaginary * factor}; }

  ComplexNumber operator/(T divisor) const { return {real / divisor, imaginary / divisor}; }
};

template <class T>
using ComplexElement = PlainElement<ComplexNumber<T>, ComplexNumber<T>>;

// Integers add and multiply as unsigned numbers, so that wrapping is defined, are compared and
// combined bit by bit as they are, and are averaged in 64 bits.
template <class T, RedOp kOp>
using IntegerElement = PlainElement<
    T, std::conditional_t<kOp == RedOp::kSum || kOp == RedOp::kProd,
                          std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>,
                          std::conditional_t<kOp == RedOp::kAvg,
                                             std::conditional_t<std::is_same_v<T, std::uint64_t>,
                                                                std::uint64_t, std::int64_t>,
                                             T>>>;

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
struct ElementOf<DType::kFloat8E4m3fn, kOp> : Float8Element<Float8E4m3fn> {};

template <RedOp kOp>
struct ElementOf<DType::kFloat8E5m2, kOp> : Float8Element<Float8E5m2> {};

template <RedOp kOp>
struct ElementOf<DType::kFloat8E4m3fnuz, kOp> : Float8Element<Float8E4m3fnuz> {};

template <RedOp kOp>
struct ElementOf<DType::kFloat8E5m2fnuz, kOp> : Float8Element<Float8E5m2fnuz> {};

template <RedOp kOp>
struct ElementOf<DType::kBool, kOp> : BoolElement {};

template <RedOp kOp>
struct ElementOf<DType::kInt8, kOp> : IntegerElement<std::int8_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kInt16, kOp> : IntegerElement<std::int16_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kInt32, kOp> : IntegerElement<std::int32_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kInt64, kOp> : IntegerElement<std::int64_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kUint8, kOp> : IntegerElement<std::uint8_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kUint16, kOp> : IntegerElement<std::uint16_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kUint32, kOp> : IntegerElement<std::uint32_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kUint64, kOp> : IntegerElement<std::uint64_t, kOp> {};

template <RedOp kOp>
struct ElementOf<DType::kComplex64, kOp> : ComplexElement<float> {};

template <RedOp kOp>
struct ElementOf<DType::kComplex128, kOp> : ComplexElement<double> {};

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

inline bool combine_bools(RedOp op, bool a, bool b) {
  switch (op) {
    case RedOp::kMin:
    case RedOp::kProd:
    case RedOp::kBand:
      return a && b;
    case RedOp::kBxor:
      return a != b;
    default:
      return a || b;
  }
}

template <RedOp kOp, class T>
T element_combine(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return combine_bools(kOp, a, b);
  } else if constexpr (kOp == RedOp::kMin) {
    return element_min(a, b);
  } else if constexpr (kOp == RedOp::kMax) {
    return element_max(a, b);
  } else if constexpr (kOp == RedOp::kProd) {
    return a * b;
  } else if constexpr (kOp == RedOp::kBand) {
    return static_cast<T>(a & b);
  } else if constexpr (kOp == RedOp::kBor) {
    return static_cast<T>(a | b);
  } else if constexpr (kOp == RedOp::kBxor) {
    return static_cast<T>(a ^ b);
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

template <class T>
T element_divide(T sum, std::int32_t divisor) {
  return static_cast<T>(sum / static_cast<T>(divisor));
}

template <class T>
ComplexNumber<T> element_divide(ComplexNumber<T> sum, std::int32_t divisor) {
  return sum / static_cast<T>(divisor);
}

// The one NaN in place of any other.
template <class T>
T element_canonical(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value == value ? value : std::numeric_limits<T>::quiet_NaN();
  } else {
    return value;
  }
}

template <class T>
ComplexNumber<T> element_canonical(ComplexNumber<T> value) {
  return {element_canonical(value.real), element_canonical(value.imaginary)};
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
    if constexpr (kOp == RedOp::kAvg) {
      if (divide) {
        sum = element_divide(sum, divisor);
      }
    }
    element_store<Storage>(dst, i, Element::narrow(element_canonical(sum)));
  }
}

// The type of a factor: that of one number of the accumulator.
template <class T>
struct FactorOf {
  using Type = T;
};

template <class T>
struct FactorOf<ComplexNumber<T>> {
  using Type = T;
};

// A ScaleFn, one element at a time.
template <DType kType>
void scale_elements(void* dst, const void* src, std::size_t count, double factor) {
  using Element = ElementOf<kType, RedOp::kSum>;
  using Storage = typename Element::Storage;
  const auto by = static_cast<typename FactorOf<typename Element::Accumulator>::Type>(factor);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = Element::widen(element_load<Storage>(src, i)) * by;
    element_store<Storage>(dst, i, Element::narrow(element_canonical(value)));
  }
}

}  // namespace isthmus
