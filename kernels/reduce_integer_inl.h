// What the integer families share. Included once per Highway target.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <hwy/highway.h>

#include "base/dtype.h"
#include "kernels/reduce_loop_inl.h"
#include "kernels/reduce_table.h"

#if defined(ISTHMUS_REDUCE_INTEGER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_REDUCE_INTEGER_INL_H
#undef ISTHMUS_REDUCE_INTEGER_INL_H
#else
#define ISTHMUS_REDUCE_INTEGER_INL_H
#endif

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
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
  static constexpr bool kFixedSources = kOp == RedOp::kSum && sizeof(T) >= 4;
  static constexpr std::size_t kParts = 1;
  static constexpr std::size_t kPrefetchLines = 0;

  HWY_INLINE Acc start(Acc v) const { return v; }

  HWY_INLINE Acc combine(Acc acc, Acc v) const {
    if constexpr (kOp == RedOp::kMin) {
      return hn::Min(acc, v);
    } else if constexpr (kOp == RedOp::kMax) {
      return hn::Max(acc, v);
    } else if constexpr (kOp == RedOp::kProd) {
      return wrapping_product(acc, v);
    } else if constexpr (kOp == RedOp::kBand) {
      return hn::And(acc, v);
    } else if constexpr (kOp == RedOp::kBor) {
      return hn::Or(acc, v);
    } else if constexpr (kOp == RedOp::kBxor) {
      return hn::Xor(acc, v);
    } else {
      return hn::Add(acc, v);
    }
  }

  HWY_INLINE Acc scale(Acc acc) const { return acc; }

  HWY_INLINE Acc finish(Acc acc) const { return acc; }
};

template <DType kType, RedOp kOp, class Kernel>
void reduce_integers(void* dst, const void* const* sources, int source_count, std::size_t count,
                     std::int32_t divisor) {
  check_reduce<kOp>(source_count, divisor);
  if (source_count == 1) {
    return copy_source(dst, sources, count * sizeof(typename Kernel::Storage));
  }
  reduce_any_count<kType, kOp>(Kernel(), dst, sources, source_count, count, divisor);
}

// The kernels of a signed and an unsigned type of one width: only order and AVG tell them apart.
template <DType kSigned, DType kUnsigned, class T>
struct IntegerReduce {
  using Unsigned = std::make_unsigned_t<T>;

  template <RedOp kOp>
  static void fill_both(ReduceTable& table) {
    const ReduceFn fn = &reduce_integers<kUnsigned, kOp, IntegerKernel<Unsigned, kOp>>;
    table.at(kSigned, kOp) = fn;
    table.at(kUnsigned, kOp) = fn;
  }

  template <RedOp kOp>
  static void fill_each(ReduceTable& table) {
    table.at(kSigned, kOp) = &reduce_integers<kSigned, kOp, IntegerKernel<T, kOp>>;
    table.at(kUnsigned, kOp) = &reduce_integers<kUnsigned, kOp, IntegerKernel<Unsigned, kOp>>;
  }

  static void fill(ReduceTable& table) {
    fill_both<RedOp::kSum>(table);
    fill_both<RedOp::kProd>(table);
    fill_both<RedOp::kBand>(table);
    fill_both<RedOp::kBor>(table);
    fill_both<RedOp::kBxor>(table);
    fill_each<RedOp::kMin>(table);
    fill_each<RedOp::kMax>(table);
  }
};

// Wrapping the wide sum of an AVG by 1 gives the wrapped sum.
template <DType kType, class T>
HWY_INLINE void sum_instead(void* dst, const void* const* sources, int source_count,
                            std::size_t count) {
  constexpr RedOp kSum = RedOp::kSum;
  reduce_integers<kType, kSum, IntegerKernel<std::make_unsigned_t<T>, kSum>>(
      dst, sources, source_count, count, 1);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // toggle
