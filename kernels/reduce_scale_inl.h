// How an AVG of a floating-point type divides and a PREMUL_SUM multiplies, and the table of such a
// type. Included once per Highway target.
#include <cstdint>

#include <hwy/highway.h>

#include "base/dtype.h"
#include "kernels/reduce_loop_inl.h"
#include "kernels/reduce_table.h"

#if defined(ISTHMUS_REDUCE_SCALE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_REDUCE_SCALE_INL_H
#undef ISTHMUS_REDUCE_SCALE_INL_H
#else
#define ISTHMUS_REDUCE_SCALE_INL_H
#endif

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
namespace {

// Each has apply(v), for a vector of float or double accumulators.
struct NoScale {
  explicit NoScale(std::int32_t /*divisor*/) {}

  template <class V>
  HWY_INLINE V apply(V v) const {
    return v;
  }
};

// The inverse of a power of two is exact, so the product has the bits of the quotient and takes a
// quarter of the time.
template <class T>
struct MultiplyScale {
  T factor;

  explicit MultiplyScale(std::int32_t divisor) : factor(T{1} / static_cast<T>(divisor)) {}

  explicit MultiplyScale(double factor_in) : factor(static_cast<T>(factor_in)) {}

  template <class V>
  HWY_INLINE V apply(V v) const {
    return hn::Mul(v, hn::Set(hn::DFromV<V>(), factor));
  }
};

template <class T>
struct DivideScale {
  T divisor;

  explicit DivideScale(std::int32_t divisor_in) : divisor(static_cast<T>(divisor_in)) {}

  template <class V>
  HWY_INLINE V apply(V v) const {
    return hn::Div(v, hn::Set(hn::DFromV<V>(), divisor));
  }
};

// The ReduceFns of a floating-point dtype. A Family has kType, the type Accumulator, and the
// kernels Sum<op, Scale> for SUM, AVG and PROD and Order<op> for MIN and MAX.
template <class Family>
struct FloatReduce {
  static constexpr DType kType = Family::kType;
  using T = typename Family::Accumulator;

  template <RedOp kOp, class Kernel>
  static void plain(void* dst, const void* const* sources, int source_count, std::size_t count,
                    std::int32_t divisor) {
    check_reduce<kOp>(source_count, divisor);
    if (source_count == 1) {
      return copy_source(dst, sources, count * sizeof(typename Kernel::Storage));
    }
    reduce_any_count<kType, kOp>(Kernel(divisor), dst, sources, source_count, count, divisor);
  }

  static void average(void* dst, const void* const* sources, int source_count, std::size_t count,
                      std::int32_t divisor) {
    check_reduce<RedOp::kAvg>(source_count, divisor);
    if (divisor == 1) {
      return kSum(dst, sources, source_count, count, divisor);
    }
    if ((divisor & (divisor - 1)) == 0) {
      const typename Family::template Sum<RedOp::kAvg, MultiplyScale<T>> kernel(divisor);
      return reduce_any_count<kType, RedOp::kAvg>(kernel, dst, sources, source_count, count,
                                                  divisor);
    }
    const typename Family::template Sum<RedOp::kAvg, DivideScale<T>> kernel(divisor);
    reduce_any_count<kType, RedOp::kAvg>(kernel, dst, sources, source_count, count, divisor);
  }

  // The factor of PREMUL_SUM: the multiplication of an AVG, with any number.
  static void premultiply(void* dst, const void* src, std::size_t count, double factor) {
    scale_any_count(typename Family::template Sum<RedOp::kAvg, MultiplyScale<T>>(factor), dst, src,
                    count);
  }

  static constexpr ReduceFn kSum =
      &plain<RedOp::kSum, typename Family::template Sum<RedOp::kSum, NoScale>>;

  static void fill(ReduceTable& table) {
    table.at(kType, RedOp::kSum) = kSum;
    table.at(kType, RedOp::kAvg) = &average;
    table.at(kType, RedOp::kMin) =
        &plain<RedOp::kMin, typename Family::template Order<RedOp::kMin>>;
    table.at(kType, RedOp::kMax) =
        &plain<RedOp::kMax, typename Family::template Order<RedOp::kMax>>;
    table.at(kType, RedOp::kProd) =
        &plain<RedOp::kProd, typename Family::template Sum<RedOp::kProd, NoScale>>;
    table.at(kType, RedOp::kPremulSum) = kSum;
    table.scale[static_cast<std::size_t>(kType)] = &premultiply;
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // toggle
