// float16 and bfloat16: sums in float32, minima as integers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_half.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/reduce_loop_inl.h"
#include "kernels/reduce_scale_inl.h"
#include "kernels/reduce_small_inl.h"
#include "kernels/reduce_table.h"

HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace {

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
  static constexpr bool kFixedSources = kOp != RedOp::kProd;
  static constexpr std::size_t kParts = 1;
  static constexpr std::size_t kPrefetchLines = kWideningPrefetch;
  Scale scaling;

  template <class Number>
  explicit HalfSumKernel(Number scale_in) : scaling(scale_in) {}

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
  static constexpr bool kFixedSources = kOp != RedOp::kProd;
  static constexpr std::size_t kParts = 1;
  static constexpr std::size_t kPrefetchLines = kWideningPrefetch;
  Scale scaling;

  template <class Number>
  explicit BFloat16SumKernel(Number scale_in) : scaling(scale_in) {}

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

struct Float16Kernels {
  static constexpr DType kType = DType::kFloat16;
  using Accumulator = float;
  template <RedOp kOp, class Scale>
  using Sum = HalfSumKernel<kOp, Scale>;
  template <RedOp kOp>
  using Order = SmallOrderKernel<std::uint16_t, kOp, 0x7C00, kHalfNan>;
};

struct BFloat16Kernels {
  static constexpr DType kType = DType::kBFloat16;
  using Accumulator = float;
  template <RedOp kOp, class Scale>
  using Sum = BFloat16SumKernel<kOp, Scale>;
  template <RedOp kOp>
  using Order = SmallOrderKernel<std::uint16_t, kOp, 0x7F80, kBFloat16Nan>;
};

}  // namespace

void fill_half(ReduceTable& table) {
  FloatReduce<Float16Kernels>::fill(table);
  FloatReduce<BFloat16Kernels>::fill(table);
}
#else
void fill_half(ReduceTable& /*table*/) {}
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
