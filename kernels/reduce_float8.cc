// float8: sums in float32, minima as integers. The fnuz formats, which no CPU job is known to
// reduce, keep the scalar kernels, which widen by a table.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_float8.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/float8.h"
#include "kernels/reduce_loop_inl.h"
#include "kernels/reduce_scale_inl.h"
#include "kernels/reduce_small_inl.h"
#include "kernels/reduce_table.h"

HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace {

// Widening is the processor's conversion from float16, which has the exponent of e5m2 and one that
// is off by 2^8 of e4m3, and keeps denormals whatever the thread's mode. Narrowing is integer
// arithmetic, as in float8.h.
template <class Format, RedOp kOp, class Scale>
struct Float8SumKernel {
  using Storage = std::uint8_t;
  using ProbeTag = hn::ScalableTag<float>;
  using D = hn::Rebind<std::uint8_t, ProbeTag>;
  using WordTag = hn::Rebind<std::uint16_t, ProbeTag>;
  using SignedWordTag = hn::RebindToSigned<WordTag>;
  using HalfTag = hn::Rebind<hwy::float16_t, ProbeTag>;
  using BitsTag = hn::RebindToUnsigned<ProbeTag>;
  using SignedTag = hn::RebindToSigned<ProbeTag>;
  using Acc = hn::Vec<ProbeTag>;
  static constexpr bool kCanonical = true;
  static constexpr int kUnroll = 4;
  static constexpr bool kFixedSources = false;
  static constexpr std::size_t kParts = 1;
  static constexpr std::size_t kPrefetchLines = kWideningPrefetch;
  static constexpr bool kHasInfinity = Format::kKind == Float8Kind::kIeee;
  static_assert(Format::kKind != Float8Kind::kFnuz);
  Scale scaling;

  template <class Number>
  explicit Float8SumKernel(Number scale_in) : scaling(scale_in) {}

  HWY_INLINE Acc start(hn::Vec<D> v) const {
    const hn::Vec<WordTag> high = hn::ShiftLeft<8>(hn::PromoteTo(WordTag(), v));
    if constexpr (kHasInfinity) {
      return hn::PromoteTo(ProbeTag(), hn::BitCast(HalfTag(), high));
    } else {
      // The exponent moves down by a bit, and with it a copy of the sign, which is cut off.
      const auto moved = hn::ShiftRight<1>(hn::BitCast(SignedWordTag(), high));
      const hn::Vec<WordTag> half =
          hn::And(hn::BitCast(WordTag(), moved), hn::Set(WordTag(), 0xBFFF));
      const Acc value = hn::Mul(hn::PromoteTo(ProbeTag(), hn::BitCast(HalfTag(), half)),
                                hn::Set(ProbeTag(), 256.0F));
      // The pattern of NaN reads as 480, which is no number of the format.
      const auto is_nan = hn::Eq(hn::Abs(value), hn::Set(ProbeTag(), 480.0F));
      const Acc nan = hn::Set(ProbeTag(), std::numeric_limits<float>::quiet_NaN());
      return hn::IfThenElse(is_nan, nan, value);
    }
  }

  HWY_INLINE Acc combine(Acc acc, hn::Vec<D> v) const { return combine_floats<kOp>(acc, start(v)); }

  HWY_INLINE Acc scale(Acc acc) const { return scaling.apply(acc); }

  HWY_INLINE Acc probe(Acc acc) const { return acc; }

  HWY_INLINE Acc canonical(Acc acc) const { return canonical_floats(acc); }

  HWY_INLINE hn::Vec<D> finish(Acc acc) const {
    constexpr int kShift = 23 - Format::kMantissaBits;
    constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format::kBias) << 23;
    const hn::Vec<BitsTag> bits = hn::BitCast(BitsTag(), acc);
    const hn::Vec<BitsTag> magnitude = hn::And(bits, hn::Set(BitsTag(), 0x7FFFFFFFU));
    // Half of the last place, less one where the result is even.
    const hn::Vec<BitsTag> odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(BitsTag(), 1U));
    const hn::Vec<BitsTag> half =
        hn::Add(odd, hn::Set(BitsTag(), (1U << (kShift - 1)) - 1U - kRebias));
    const hn::Vec<BitsTag> normal = hn::ShiftRight<kShift>(hn::Add(magnitude, half));
    // Added to a number whose last place is the least denormal, the value is rounded to denormals.
    constexpr std::uint32_t kMagic = kRebias + (static_cast<std::uint32_t>(kShift + 1) << 23);
    const hn::Vec<BitsTag> magic = hn::Set(BitsTag(), kMagic);
    const Acc sum = hn::Add(hn::BitCast(ProbeTag(), magnitude), hn::BitCast(ProbeTag(), magic));
    const hn::Vec<BitsTag> denormal = hn::Sub(hn::BitCast(BitsTag(), sum), magic);
    const auto is_denormal =
        hn::Lt(hn::BitCast(SignedTag(), magnitude),
               hn::Set(SignedTag(), static_cast<std::int32_t>(kRebias + (1U << 23))));
    hn::Vec<BitsTag> result =
        hn::IfThenElse(hn::RebindMask(BitsTag(), is_denormal), denormal, normal);
    result = hn::Min(result, hn::Set(BitsTag(), std::uint32_t{Format::kLast}));
    const auto is_nan =
        hn::Gt(hn::BitCast(SignedTag(), magnitude), hn::Set(SignedTag(), std::int32_t{0x7F800000}));
    result = hn::IfThenElse(hn::RebindMask(BitsTag(), is_nan),
                            hn::Set(BitsTag(), std::uint32_t{Format::kNan}), result);
    const hn::Vec<BitsTag> sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(BitsTag(), 0x80U));
    return hn::DemoteTo(D(), hn::BitCast(SignedTag(), hn::Or(result, sign)));
  }
};

template <DType kTypeIn, class Format>
struct Float8Kernels {
  static constexpr DType kType = kTypeIn;
  using Accumulator = float;
  template <RedOp kOp, class Scale>
  using Sum = Float8SumKernel<Format, kOp, Scale>;
  template <RedOp kOp>
  using Order = SmallOrderKernel<std::uint8_t, kOp, Format::kLast, Format::kNan>;
};

}  // namespace

void fill_float8(ReduceTable& table) {
  FloatReduce<Float8Kernels<DType::kFloat8E4m3fn, Float8E4m3fn>>::fill(table);
  FloatReduce<Float8Kernels<DType::kFloat8E5m2, Float8E5m2>>::fill(table);
}
#else
void fill_float8(ReduceTable& /*table*/) {}
#endif
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(fill_float8);

void fill_float8_kernels(ReduceTable& table) {
  HWY_DYNAMIC_DISPATCH(fill_float8)(table);
}

}  // namespace isthmus
#endif
