// float32 and float64, and the complex numbers wherever each part goes its own way.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_float.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/reduce_loop_inl.h"
#include "kernels/reduce_scale_inl.h"
#include "kernels/reduce_table.h"

HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace {

// a where a < b, else b, also where they are unordered: on x86 that is one instruction.
template <class V>
HWY_INLINE V lesser_or_second(V a, V b) {
#if HWY_ARCH_X86
  return hn::Min(a, b);
#else
  return hn::IfThenElse(hn::Lt(a, b), a, b);
#endif
}

// Both orders: equal operands are zeros of either sign or have the same bits; of unordered ones,
// each order gives its second, one of which is a NaN, and a NaN stays one under OR.
template <class V>
HWY_INLINE V min_with_nan(V a, V b) {
  return hn::Or(lesser_or_second(a, b), lesser_or_second(b, a));
}

template <class T, RedOp kOp, class Scale>
struct FloatKernel {
  using Storage = T;
  using D = hn::ScalableTag<T>;
  using ProbeTag = D;
  using Acc = hn::Vec<D>;
  static constexpr bool kCanonical = true;
  static constexpr int kUnroll = 4;
  static constexpr bool kFixedSources = kOp == RedOp::kSum || kOp == RedOp::kAvg;
  static constexpr std::size_t kParts = 1;
  static constexpr std::size_t kPrefetchLines = 0;
  Scale scaling;

  template <class Number>
  explicit FloatKernel(Number scale_in) : scaling(scale_in) {}

  // MAX is the MIN of the negated numbers.
  HWY_INLINE Acc start(Acc v) const { return kOp == RedOp::kMax ? hn::Neg(v) : v; }

  HWY_INLINE Acc combine(Acc acc, Acc v) const {
    if constexpr (kOp == RedOp::kMin || kOp == RedOp::kMax) {
      return min_with_nan(acc, start(v));
    } else if constexpr (kOp == RedOp::kProd) {
      return hn::Mul(acc, v);
    } else {
      return hn::Add(acc, v);
    }
  }

  HWY_INLINE Acc scale(Acc acc) const { return scaling.apply(acc); }

  HWY_INLINE Acc probe(Acc acc) const { return acc; }

  HWY_INLINE Acc canonical(Acc acc) const {
    // finish() of a MAX flips the sign.
    const T nan = std::numeric_limits<T>::quiet_NaN();
    return hn::IfThenElse(hn::IsNaN(acc), hn::Set(D(), kOp == RedOp::kMax ? -nan : nan), acc);
  }

  HWY_INLINE Acc finish(Acc acc) const { return start(acc); }
};

template <DType kTypeIn, class T>
struct FloatFamily {
  static constexpr DType kType = kTypeIn;
  using Accumulator = T;
  template <RedOp kOp, class Scale>
  using Sum = FloatKernel<T, kOp, Scale>;
  template <RedOp kOp>
  using Order = FloatKernel<T, kOp, NoScale>;
};

// SUM, AVG and PREMUL_SUM of complex numbers are those of twice as many real ones.
template <DType kType, class Real>
struct ComplexReduce {
  static void sum(void* dst, const void* const* sources, int source_count, std::size_t count,
                  std::int32_t divisor) {
    Real::kSum(dst, sources, source_count, 2 * count, divisor);
  }

  static void average(void* dst, const void* const* sources, int source_count, std::size_t count,
                      std::int32_t divisor) {
    Real::average(dst, sources, source_count, 2 * count, divisor);
  }

  static void premultiply(void* dst, const void* src, std::size_t count, double factor) {
    Real::premultiply(dst, src, 2 * count, factor);
  }

  static void fill(ReduceTable& table) {
    table.at(kType, RedOp::kSum) = &sum;
    table.at(kType, RedOp::kAvg) = &average;
    table.at(kType, RedOp::kPremulSum) = &sum;
    table.scale[static_cast<std::size_t>(kType)] = &premultiply;
  }
};

}  // namespace

void fill_float(ReduceTable& table) {
  using Single = FloatReduce<FloatFamily<DType::kFloat32, float>>;
  using Double = FloatReduce<FloatFamily<DType::kFloat64, double>>;
  Single::fill(table);
  Double::fill(table);
  ComplexReduce<DType::kComplex64, Single>::fill(table);
  ComplexReduce<DType::kComplex128, Double>::fill(table);
}
#else
void fill_float(ReduceTable& /*table*/) {}
#endif
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(fill_float);

void fill_float_kernels(ReduceTable& table) {
  HWY_DYNAMIC_DISPATCH(fill_float)(table);
}

}  // namespace isthmus
#endif
