// What the floating-point types of 8 and 16 bits share: sums in float32, minima as integers.
// Included once per Highway target.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <hwy/highway.h>

#include "base/dtype.h"

#if defined(ISTHMUS_REDUCE_SMALL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_REDUCE_SMALL_INL_H
#undef ISTHMUS_REDUCE_SMALL_INL_H
#else
#define ISTHMUS_REDUCE_SMALL_INL_H
#endif

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <RedOp kOp, class V>
HWY_INLINE V combine_floats(V a, V b) {
  if constexpr (kOp == RedOp::kProd) {
    return hn::Mul(a, b);
  } else {
    return hn::Add(a, b);
  }
}

template <class V>
HWY_INLINE V canonical_floats(V v) {
  const hn::DFromV<V> tag;
  return hn::IfThenElse(hn::IsNaN(v), hn::Set(tag, std::numeric_limits<float>::quiet_NaN()), v);
}

// MIN and MAX of a format whose numbers with the sign bit flipped into two's complement are ordered
// as integers: -NaN, -inf .. -0, +0 .. +inf, +NaN. Rotating that circle until infinity (kLast: the
// greatest pattern that is no NaN) is the last integer brings all NaNs to its beginning, where a
// minimum finds them; for a maximum it is turned the other way.
template <class T, RedOp kOp, T kLast, T kNan>
struct SmallOrderKernel {
  using Storage = T;
  using Signed = std::make_signed_t<T>;
  using D = hn::ScalableTag<T>;
  using OrderTag = hn::RebindToSigned<D>;
  using Acc = hn::Vec<OrderTag>;
  static constexpr bool kCanonical = false;
  static constexpr int kUnroll = 4;
  static constexpr bool kFixedSources = false;
  static constexpr std::size_t kParts = 1;
  static constexpr std::size_t kPrefetchLines = kWideningPrefetch;
  static constexpr Signed kMost = std::numeric_limits<Signed>::max();
  static constexpr bool kMinimum = kOp == RedOp::kMin;
  // How far the NaNs reach beyond an infinity.
  static constexpr Signed kTurn = static_cast<Signed>(kMost - kLast);

  explicit SmallOrderKernel(std::int32_t /*divisor*/) {}

  HWY_INLINE Acc flip(Acc v) const {
    return hn::Xor(v, hn::And(hn::BroadcastSignBit(v), hn::Set(OrderTag(), kMost)));
  }

  HWY_INLINE Acc start(hn::Vec<D> v) const {
    const Acc order = flip(hn::BitCast(OrderTag(), v));
    const Acc turn = hn::Set(OrderTag(), kTurn);
    return kMinimum ? hn::Add(order, turn) : hn::Sub(order, turn);
  }

  HWY_INLINE Acc combine(Acc acc, hn::Vec<D> v) const {
    return kMinimum ? hn::Min(acc, start(v)) : hn::Max(acc, start(v));
  }

  HWY_INLINE Acc scale(Acc acc) const { return acc; }

  HWY_INLINE hn::Vec<D> finish(Acc acc) const {
    const Acc turn = hn::Set(OrderTag(), kTurn);
    const Acc order = kMinimum ? hn::Sub(acc, turn) : hn::Add(acc, turn);
    // Both NaN ranges now lie in one, kTurn numbers of each sign, at the end that won.
    constexpr Signed kBound =
        static_cast<Signed>(kMinimum ? -kMost - 1 + 2 * kTurn : kMost - 2 * kTurn);
    const Acc bound = hn::Set(OrderTag(), kBound);
    const hn::Mask<OrderTag> is_nan = kMinimum ? hn::Lt(acc, bound) : hn::Gt(acc, bound);
    const Acc nan = hn::Set(OrderTag(), static_cast<Signed>(kNan));
    return hn::BitCast(D(), hn::IfThenElse(is_nan, nan, flip(order)));
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // toggle
