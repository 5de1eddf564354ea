// int32, int64 and uint8.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_integer.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/reduce_loop_inl.h"
#include "kernels/reduce_table.h"

HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace {

template <class V>
HWY_INLINE V wrapping_product(V a, V b) {
  const hn::DFromV<V> tag;
  if constexpr (sizeof(hn::TFromV<V>) == 1) {
    // The low byte of a 16-bit product depends on the low bytes of its factors only.
    const hn::RepartitionToWide<decltype(tag)> wide;
    const auto a16 = hn::BitCast(wide, a);
    const auto b16 = hn::BitCast(wide, b);
    const auto odd = hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16));
    return hn::OddEven(hn::BitCast(tag, hn::ShiftLeft<8>(odd)),
                       hn::BitCast(tag, hn::Mul(a16, b16)));
  } else {
    return a * b;  // There is no named 64-bit Mul.
  }
}

template <class T, RedOp kOp>
struct IntegerKernel {
  using Storage = T;
  using D = hn::ScalableTag<T>;
  using Acc = hn::Vec<D>;
  static constexpr bool kCanonical = false;
  static constexpr int kUnroll = 4;

  HWY_INLINE Acc start(Acc v) const { return v; }

  HWY_INLINE Acc combine(Acc acc, Acc v) const {
    if constexpr (kOp == RedOp::kMin) {
      return hn::Min(acc, v);
    } else if constexpr (kOp == RedOp::kMax) {
      return hn::Max(acc, v);
    } else if constexpr (kOp == RedOp::kProd) {
      return wrapping_product(acc, v);
    } else {
      return hn::Add(acc, v);
    }
  }

  HWY_INLINE Acc scale(Acc acc) const { return acc; }

  HWY_INLINE Acc finish(Acc acc) const { return acc; }
};

// AVG of int32, in float64: sums of kReduceSourcesMax elements are exact, and a quotient of
// integers below 2^53 cannot round up to the next integer, so truncating it is exact too. The
// divisor is at least the number of sources: the quotient fits.
struct Int32AverageKernel {
  using Storage = std::int32_t;
  using WideTag = hn::ScalableTag<double>;
  using D = hn::Rebind<std::int32_t, WideTag>;
  using Acc = hn::Vec<WideTag>;
  static constexpr bool kCanonical = false;
  static constexpr int kUnroll = 2;
  double divisor;

  HWY_INLINE Acc start(hn::Vec<D> v) const { return hn::PromoteTo(WideTag(), v); }

  HWY_INLINE Acc combine(Acc acc, hn::Vec<D> v) const { return hn::Add(acc, start(v)); }

  HWY_INLINE Acc scale(Acc acc) const { return hn::Div(acc, hn::Set(WideTag(), divisor)); }

  HWY_INLINE hn::Vec<D> finish(Acc acc) const { return hn::DemoteTo(D(), acc); }
};

// AVG of uint8, in float32, by the same argument: sums stay below 2^24, and a divisor that float32
// cannot hold is greater than any sum.
struct Uint8AverageKernel {
  using Storage = std::uint8_t;
  using WideTag = hn::ScalableTag<std::int32_t>;
  using FloatTag = hn::RebindToFloat<WideTag>;
  using D = hn::Rebind<std::uint8_t, WideTag>;
  using Acc = hn::Vec<WideTag>;
  static constexpr bool kCanonical = false;
  static constexpr int kUnroll = 2;
  float divisor;

  HWY_INLINE Acc start(hn::Vec<D> v) const { return hn::PromoteTo(WideTag(), v); }

  HWY_INLINE Acc combine(Acc acc, hn::Vec<D> v) const { return hn::Add(acc, start(v)); }

  HWY_INLINE Acc scale(Acc acc) const {
    const auto quotient = hn::Div(hn::ConvertTo(FloatTag(), acc), hn::Set(FloatTag(), divisor));
    // An average of fewer than all wraps, as the sum does.
    return hn::And(hn::ConvertTo(WideTag(), quotient), hn::Set(WideTag(), 0xFF));
  }

  HWY_INLINE hn::Vec<D> finish(Acc acc) const { return hn::DemoteTo(D(), acc); }
};

template <DType kType, class T>
struct IntegerReduce {
  template <RedOp kOp>
  static void plain(void* dst, const void* const* sources, int source_count, std::size_t count,
                    std::int32_t divisor) {
    check_reduce<kOp>(source_count, divisor);
    if (source_count == 1) {
      return copy_source(dst, sources, count * sizeof(T));
    }
    reduce_any_count<kType, kOp>(IntegerKernel<T, kOp>(), dst, sources, source_count, count,
                                 divisor);
  }

  static void average(void* dst, const void* const* sources, int source_count, std::size_t count,
                      std::int32_t divisor) {
    check_reduce<RedOp::kAvg>(source_count, divisor);
    constexpr RedOp kAvg = RedOp::kAvg;
    if (divisor == 1) {
      // Wrapping the wide sum gives the wrapped sum.
      return plain<RedOp::kSum>(dst, sources, source_count, count, divisor);
    }
    if constexpr (kType == DType::kInt32) {
      if (divisor >= source_count) {
        const Int32AverageKernel kernel{static_cast<double>(divisor)};
        return reduce_any_count<kType, kAvg>(kernel, dst, sources, source_count, count, divisor);
      }
    }
    if constexpr (kType == DType::kUint8) {
      const Uint8AverageKernel kernel{static_cast<float>(divisor)};
      return reduce_any_count<kType, kAvg>(kernel, dst, sources, source_count, count, divisor);
    }
    reduce_elements<kType, kAvg>(dst, sources, source_count, count, divisor);
  }

  static void fill(ReduceTable& table) {
    table.at(kType, RedOp::kSum) = &plain<RedOp::kSum>;
    table.at(kType, RedOp::kAvg) = &average;
    table.at(kType, RedOp::kMin) = &plain<RedOp::kMin>;
    table.at(kType, RedOp::kMax) = &plain<RedOp::kMax>;
    table.at(kType, RedOp::kProd) = &plain<RedOp::kProd>;
  }
};

}  // namespace

void fill_integer(ReduceTable& table) {
  IntegerReduce<DType::kInt32, std::int32_t>::fill(table);
  IntegerReduce<DType::kInt64, std::int64_t>::fill(table);
  IntegerReduce<DType::kUint8, std::uint8_t>::fill(table);
}
#else
void fill_integer(ReduceTable& table) {
  fill_scalar_kernels<DType::kInt32>(table);
  fill_scalar_kernels<DType::kInt64>(table);
  fill_scalar_kernels<DType::kUint8>(table);
}
#endif
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(fill_integer);

void fill_integer_kernels(ReduceTable& table) {
  HWY_DYNAMIC_DISPATCH(fill_integer)(table);
}

}  // namespace isthmus
#endif
