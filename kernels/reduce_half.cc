// float16 and bfloat16: sums in float32, minima as integers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_half.cc"
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

// float16 by the processor's own conversions, which round to nearest even and keep denormals.
template <RedOp kOp, class Scale>
struct HalfSumKernel {
  using Storage = std::uint16_t;
  using ProbeTag = hn::ScalableTag<float>;
  using D = hn::Rebind<std::uint16_t, ProbeTag>;
  using HalfTag = hn::Rebind<hwy::float16_t, ProbeTag>;
  using Acc = hn::Vec<ProbeTag>;
  static constexpr bool kCanonical = true;
  static constexpr int kUnroll = 4;
  Scale scaling;

  explicit HalfSumKernel(std::int32_t divisor) : scaling(divisor) {}

  HWY_INLINE Acc start(hn::Vec<D> v) const {
    return hn::PromoteTo(ProbeTag(), hn::BitCast(HalfTag(), v));
  }

  HWY_INLINE Acc combine(Acc acc, hn::Vec<D> v) const { return combine_floats<kOp>(acc, start(v)); }

  HWY_INLINE Acc scale(Acc acc) const { return scaling.apply(acc); }

  HWY_INLINE Acc probe(Acc acc) const { return acc; }

  HWY_INLINE Acc canonical(Acc acc) const { return canonical_floats(acc); }

  HWY_INLINE hn::Vec<D> finish(Acc acc) const {
    return hn::BitCast(D(), hn::DemoteTo(HalfTag(), acc));
  }
};

// bfloat16 in pairs: the even elements shifted up and the odd ones with their neighbour masked off
// are the float32 operands, in two instructions and without crossing lanes. Highway's own demotion
// truncates, and the processor's flushes denormals, so the rounding is integer arithmetic.
template <RedOp kOp, class Scale>
struct BFloat16SumKernel {
  using Storage = std::uint16_t;
  using D = hn::ScalableTag<std::uint16_t>;
  using BitsTag = hn::RepartitionToWide<D>;
  using ProbeTag = hn::Repartition<float, D>;

  struct Acc {
    hn::Vec<ProbeTag> even;
    hn::Vec<ProbeTag> odd;
  };

  static constexpr bool kCanonical = true;
  static constexpr int kUnroll = 4;
  Scale scaling;

  explicit BFloat16SumKernel(std::int32_t divisor) : scaling(divisor) {}

  HWY_INLINE Acc start(hn::Vec<D> v) const {
    const hn::Vec<BitsTag> bits = hn::BitCast(BitsTag(), v);
    return {hn::BitCast(ProbeTag(), hn::ShiftLeft<16>(bits)),
            hn::BitCast(ProbeTag(), hn::And(bits, hn::Set(BitsTag(), 0xFFFF0000u)))};
  }

  HWY_INLINE Acc combine(Acc acc, hn::Vec<D> v) const {
    const Acc next = start(v);
    return {combine_floats<kOp>(acc.even, next.even), combine_floats<kOp>(acc.odd, next.odd)};
  }

  HWY_INLINE Acc scale(Acc acc) const { return {scaling.apply(acc.even), scaling.apply(acc.odd)}; }

  HWY_INLINE hn::Vec<ProbeTag> probe(Acc acc) const { return hn::Add(acc.even, acc.odd); }

  HWY_INLINE Acc canonical(Acc acc) const {
    return {canonical_floats(acc.even), canonical_floats(acc.odd)};
  }

  // The rounded number in the upper 16 bits; the lower ones are noise. The canonical NaN survives.
  HWY_INLINE hn::Vec<BitsTag> rounded(hn::Vec<ProbeTag> v) const {
    const hn::Vec<BitsTag> bits = hn::BitCast(BitsTag(), v);
    // bits + 0x7FFF + (1 if the result would be odd), with the two addends negated into one: the
    // lowest bit of 0xFFFF8001 stays where the result is even.
    const hn::Vec<BitsTag> is_even = hn::AndNot(hn::ShiftRight<16>(bits), hn::Set(BitsTag(), 1u));
    return hn::Sub(bits, hn::Or(is_even, hn::Set(BitsTag(), 0xFFFF8000u)));
  }

  HWY_INLINE hn::Vec<D> finish(Acc acc) const {
    return hn::OddEven(hn::BitCast(D(), rounded(acc.odd)),
                       hn::BitCast(D(), hn::ShiftRight<16>(rounded(acc.even))));
  }
};

// MIN and MAX of either format, whose numbers with the sign bit flipped into two's complement are
// ordered as 16-bit integers: -NaN, -inf .. -0, +0 .. +inf, +NaN. Rotating that circle until
// infinity is the last integer brings all NaNs to its beginning, where a minimum finds them; for a
// maximum it is turned the other way.
template <RedOp kOp, std::uint16_t kInfinity, std::uint16_t kNan>
struct HalfOrderKernel {
  using Storage = std::uint16_t;
  using D = hn::ScalableTag<std::uint16_t>;
  using OrderTag = hn::RebindToSigned<D>;
  using Acc = hn::Vec<OrderTag>;
  static constexpr bool kCanonical = false;
  static constexpr int kUnroll = 4;
  static constexpr bool kMinimum = kOp == RedOp::kMin;
  // How far the NaNs reach beyond an infinity.
  static constexpr std::int16_t kTurn = 0x7FFF - kInfinity;

  explicit HalfOrderKernel(std::int32_t /*divisor*/) {}

  HWY_INLINE Acc flip(Acc v) const {
    return hn::Xor(v, hn::And(hn::BroadcastSignBit(v), hn::Set(OrderTag(), 0x7FFF)));
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
    constexpr std::int16_t kBound = kMinimum ? -0x8000 + 2 * kTurn : 0x7FFF - 2 * kTurn;
    const Acc bound = hn::Set(OrderTag(), kBound);
    const hn::Mask<OrderTag> is_nan = kMinimum ? hn::Lt(acc, bound) : hn::Gt(acc, bound);
    const Acc nan = hn::Set(OrderTag(), static_cast<std::int16_t>(kNan));
    return hn::BitCast(D(), hn::IfThenElse(is_nan, nan, flip(order)));
  }
};

struct Float16Kernels {
  static constexpr DType kType = DType::kFloat16;
  using Accumulator = float;
  template <RedOp kOp, class Scale>
  using Sum = HalfSumKernel<kOp, Scale>;
  template <RedOp kOp>
  using Order = HalfOrderKernel<kOp, 0x7C00, kHalfNan>;
};

struct BFloat16Kernels {
  static constexpr DType kType = DType::kBFloat16;
  using Accumulator = float;
  template <RedOp kOp, class Scale>
  using Sum = BFloat16SumKernel<kOp, Scale>;
  template <RedOp kOp>
  using Order = HalfOrderKernel<kOp, 0x7F80, kBFloat16Nan>;
};

}  // namespace

void fill_half(ReduceTable& table) {
  FloatReduce<Float16Kernels>::fill(table);
  FloatReduce<BFloat16Kernels>::fill(table);
}
#else
void fill_half(ReduceTable& table) {
  fill_scalar_kernels<DType::kFloat16>(table);
  fill_scalar_kernels<DType::kBFloat16>(table);
}
#endif
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(fill_half);

void fill_half_kernels(ReduceTable& table) {
  HWY_DYNAMIC_DISPATCH(fill_half)(table);
}

}  // namespace isthmus
#endif
