// Binned sums: the narrow format by SIMD where float32, bfloat16 and float16 are concerned, the
// rest in scalar code.
#include "kernels/binned.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/binned.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/binned_element.h"
#include "kernels/binned_table.h"

HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A vector of sums has half the lanes of one of float32 bits.
using Bits = hn::ScalableTag<std::uint32_t>;
using SignedBits = hn::RebindToSigned<Bits>;
using HalfBits = hn::Half<Bits>;
using SignedHalfBits = hn::RebindToSigned<HalfBits>;
using Sums = hn::RepartitionToWide<Bits>;
using SignedSums = hn::RebindToSigned<Sums>;
using Doubles = hn::RebindToFloat<Sums>;
using HalfFloats = hn::RebindToFloat<HalfBits>;

// How a type is loaded as float32 bits, and stored from doubles that are exact or nearly so.
struct SingleLanes {
  using Number = binned::SingleNumber;

  static HWY_INLINE hn::Vec<Bits> load(const void* from) {
    return hn::LoadU(Bits(), static_cast<const std::uint32_t*>(from));
  }

  static HWY_INLINE void store(hn::Vec<Doubles> v, void* to) {
    hn::StoreU(hn::BitCast(HalfBits(), hn::DemoteTo(HalfFloats(), v)), HalfBits(),
               static_cast<std::uint32_t*>(to));
  }
};

// Cut to float32 with the last bit set where anything was lost, so that the rounding after it is
// the only one.
HWY_INLINE hn::Vec<HalfFloats> cut_to_odd(hn::Vec<Doubles> v) {
  const hn::Vec<Sums> bits = hn::BitCast(Sums(), v);
  const hn::Vec<Sums> rest = hn::And(bits, hn::Set(Sums(), (std::uint64_t{1} << 29) - 1));
  const hn::Vec<Sums> last = hn::Set(Sums(), std::uint64_t{1} << 29);
  const hn::Vec<Sums> kept = hn::Xor(bits, rest);
  const auto lost = hn::Ne(rest, hn::Zero(Sums()));
  return hn::DemoteTo(HalfFloats(),
                      hn::BitCast(Doubles(), hn::Or(kept, hn::IfThenElseZero(lost, last))));
}

struct BFloat16Lanes {
  using Number = binned::BFloat16Number;

  static HWY_INLINE hn::Vec<Bits> load(const void* from) {
    const hn::Rebind<std::uint16_t, Bits> words;
    return hn::ShiftLeft<16>(
        hn::PromoteTo(Bits(), hn::LoadU(words, static_cast<const std::uint16_t*>(from))));
  }

  static HWY_INLINE void store(hn::Vec<Doubles> v, void* to) {
    const hn::Rebind<std::uint16_t, HalfBits> words;
    const hn::Vec<HalfBits> bits = hn::BitCast(HalfBits(), cut_to_odd(v));
    const hn::Vec<HalfBits> even = hn::And(hn::ShiftRight<16>(bits), hn::Set(HalfBits(), 1U));
    const hn::Vec<HalfBits> rounded =
        hn::ShiftRight<16>(hn::Add(bits, hn::Add(even, hn::Set(HalfBits(), 0x7FFFU))));
    hn::StoreU(hn::DemoteTo(words, hn::BitCast(SignedHalfBits(), rounded)), words,
               static_cast<std::uint16_t*>(to));
  }
};

struct HalfLanes {
  using Number = binned::HalfNumber;

  static HWY_INLINE hn::Vec<Bits> load(const void* from) {
    const hn::Rebind<std::uint16_t, Bits> words;
    const hn::Rebind<hwy::float16_t, Bits> halves;
    return hn::BitCast(
        Bits(),
        hn::PromoteTo(
            hn::RebindToFloat<Bits>(),
            hn::BitCast(halves, hn::LoadU(words, static_cast<const std::uint16_t*>(from)))));
  }

  static HWY_INLINE void store(hn::Vec<Doubles> v, void* to) {
    const hn::Rebind<std::uint16_t, HalfBits> words;
    const hn::Rebind<hwy::float16_t, HalfBits> halves;
    hn::StoreU(hn::BitCast(words, hn::DemoteTo(halves, cut_to_odd(v))), words,
               static_cast<std::uint16_t*>(to));
  }
};

// top / width of every top that there is, as a product and a shift.
template <int kWidth>
constexpr std::uint32_t reciprocal() {
  constexpr std::uint32_t kFactor = 65536 / kWidth + 1;
  for (std::uint32_t top = 0; top < 278; ++top) {
    if (top * kFactor >> 16 != top / kWidth) {
      return 0;
    }
  }
  return kFactor;
}

struct SumPair {
  hn::Vec<Sums> low;
  hn::Vec<Sums> high;
};

// binned::narrow_sum of every lane.
template <int kWidth>
HWY_INLINE SumPair narrow_sums(hn::Vec<Bits> bits) {
  constexpr std::uint32_t kFactor = reciprocal<kWidth>();
  static_assert(kFactor != 0);
  const Bits u;
  const SignedBits s;
  const hn::Vec<Bits> one = hn::Set(u, 1U);
  const hn::Vec<Bits> magnitude = hn::And(bits, hn::Set(u, 0x7FFFFFFFU));
  const hn::Vec<Bits> exponent = hn::ShiftRight<23>(magnitude);
  const hn::Vec<Bits> fraction = hn::And(bits, hn::Set(u, 0x7FFFFFU));
  const hn::Vec<SignedBits> sign = hn::ShiftRight<31>(hn::BitCast(s, bits));  // 0 or -1
  const auto normal = hn::Gt(hn::BitCast(s, exponent), hn::Zero(s));
  const hn::Vec<Bits> hidden = hn::BitCast(u, hn::IfThenElseZero(normal, hn::Set(s, 0x800000)));
  const hn::Vec<Bits> significand = hn::Or(fraction, hidden);
  // position + 1: the biased exponent, 1 for denormals.
  const hn::Vec<Bits> above = hn::Max(exponent, one);
  const hn::Vec<Bits> top = hn::Add(above, hn::Set(u, 22U));
  hn::Vec<Bits> bin = hn::ShiftRight<16>(hn::Mul(top, hn::Set(u, kFactor)));
  // Garbage where the number is infinite or NaN, but in range for the shifts.
  const hn::Vec<Bits> below =
      hn::Add(hn::Sub(hn::Mul(bin, hn::Set(u, static_cast<std::uint32_t>(kWidth))), above), one);
  const hn::Vec<Bits> half = hn::Shl(one, hn::Sub(below, one));
  const hn::Vec<Bits> upper_bits = hn::Shr(hn::Add(significand, half), below);
  const hn::Vec<SignedBits> rest = hn::BitCast(s, hn::Sub(significand, hn::Shl(upper_bits, below)));
  const hn::Vec<SignedBits> spare = hn::BitCast(s, hn::Sub(hn::Set(u, 23U), below));
  const hn::Vec<SignedBits> shifted = hn::Shl(rest, spare);
  const hn::Vec<SignedBits> lower_bits = hn::ShiftRight<23 - kWidth>(shifted);
  hn::Vec<SignedBits> upper = hn::Sub(hn::Xor(hn::BitCast(s, upper_bits), sign), sign);
  hn::Vec<SignedBits> lower = hn::Sub(hn::Xor(lower_bits, sign), sign);

  const hn::Vec<SignedBits> infinity = hn::Set(s, 0x7F800000);
  const auto special = hn::Gt(hn::BitCast(s, magnitude), hn::Set(s, 0x7F7FFFFF));
  if (HWY_UNLIKELY(!hn::AllFalse(s, special))) {
    const auto nan = hn::Gt(hn::BitCast(s, magnitude), infinity);
    constexpr std::int32_t kNan = 1 << (binned::kNanShift - binned::kLowerBits);
    constexpr std::int32_t kPlus = 1 << binned::kPlusShift;
    const hn::Vec<SignedBits> counted =
        hn::IfThenElse(hn::Lt(sign, hn::Zero(s)), hn::Set(s, 1), hn::Set(s, kPlus));
    upper = hn::IfThenElse(special, hn::IfThenElseZero(nan, hn::Set(s, kNan)), upper);
    lower = hn::IfThenElse(special, hn::IfThenZeroElse(nan, counted), lower);
    bin = hn::BitCast(
        u, hn::IfThenElse(special, hn::Set(s, static_cast<std::int32_t>(binned::kNarrowSpecial)),
                          hn::BitCast(s, bin)));
  }
  const auto negative_zero = hn::Eq(bits, hn::Set(u, 0x80000000U));
  bin = hn::IfThenZeroElse(negative_zero, bin);

  const auto pack = [](hn::Vec<SignedHalfBits> up, hn::Vec<SignedHalfBits> low,
                       hn::Vec<HalfBits> of) {
    const SignedSums wide;
    const hn::Vec<SignedSums> value = hn::Add(
        hn::ShiftLeft<binned::kLowerBits>(hn::PromoteTo(wide, up)), hn::PromoteTo(wide, low));
    return hn::Or(hn::And(hn::BitCast(Sums(), value), hn::Set(Sums(), binned::kNarrowMask)),
                  hn::ShiftLeft<binned::kNarrowBinShift>(hn::PromoteTo(Sums(), of)));
  };
  return {pack(hn::LowerHalf(SignedHalfBits(), upper), hn::LowerHalf(SignedHalfBits(), lower),
               hn::LowerHalf(HalfBits(), bin)),
          pack(hn::UpperHalf(SignedHalfBits(), upper), hn::UpperHalf(SignedHalfBits(), lower),
               hn::UpperHalf(HalfBits(), bin))};
}

template <class Lanes, int kWidth>
void bin_lanes(void* sums, const void* src, std::size_t count) {
  using Format = binned::NarrowFormat<typename Lanes::Number, kWidth>;
  constexpr std::size_t kLanes = hn::MaxLanes(Bits());
  constexpr std::size_t kWord = sizeof(typename Format::Word);
  const char* const from = static_cast<const char*>(src);
  auto* const to = static_cast<std::uint64_t*>(sums);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const SumPair pair = narrow_sums<kWidth>(Lanes::load(from + i * kWord));
    hn::StoreU(pair.low, Sums(), to + i);
    hn::StoreU(pair.high, Sums(), to + i + kLanes / 2);
  }
  binned::bin_elements<Format>(to + i, from + i * kWord, count - i);
}

HWY_INLINE hn::Vec<SignedSums> values(hn::Vec<Sums> sums) {
  return hn::ShiftRight<4>(hn::BitCast(SignedSums(), hn::ShiftLeft<4>(sums)));
}

HWY_INLINE hn::Vec<Sums> add_vectors(hn::Vec<Sums> a, hn::Vec<Sums> b) {
  const SignedSums s;
  const auto bins = [](hn::Vec<Sums> sums) {
    return hn::BitCast(SignedSums(), hn::ShiftRight<binned::kNarrowBinShift>(sums));
  };
  const hn::Vec<SignedSums> bin_a = bins(a);
  const hn::Vec<SignedSums> bin_b = bins(b);
  const auto equal = hn::Eq(bin_a, bin_b);
  if (HWY_LIKELY(hn::AllTrue(s, equal))) {
    // The four bits of the bin of b are added to nothing.
    const hn::Vec<Sums> mask = hn::Set(Sums(), binned::kNarrowMask);
    const hn::Vec<Sums> sum = hn::And(hn::Add(a, b), mask);
    return hn::Or(sum, hn::AndNot(mask, a));
  }
  const auto greater = hn::Gt(bin_a, bin_b);
  const hn::Vec<SignedSums> bin = hn::IfThenElse(greater, bin_a, bin_b);
  const auto ordinary = hn::Ne(bin, hn::Set(s, static_cast<std::int64_t>(binned::kNarrowSpecial)));
  const auto part = [&](hn::Vec<Sums> sum, hn::Vec<SignedSums> own) {
    const hn::Vec<SignedSums> value = values(sum);
    const hn::Vec<SignedSums> next =
        hn::ShiftRight<binned::kLowerBits>(hn::Add(value, hn::Set(s, binned::kLowerHalf)));
    const auto is_next = hn::And(hn::Eq(hn::Add(own, hn::Set(s, 1)), bin), ordinary);
    return hn::IfThenElse(hn::Eq(own, bin), value, hn::IfThenElseZero(is_next, next));
  };
  const hn::Vec<SignedSums> total = hn::Add(part(a, bin_a), part(b, bin_b));
  return hn::Or(hn::And(hn::BitCast(Sums(), total), hn::Set(Sums(), binned::kNarrowMask)),
                hn::ShiftLeft<binned::kNarrowBinShift>(hn::BitCast(Sums(), bin)));
}

void add_narrow(void* dst, const void* const* sources, int source_count, std::size_t count,
                std::int32_t /*divisor*/) {
  constexpr std::size_t kLanes = hn::MaxLanes(Sums());
  auto* const to = static_cast<std::uint64_t*>(dst);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::Vec<Sums> sum = hn::LoadU(Sums(), static_cast<const std::uint64_t*>(sources[0]) + i);
    for (int k = 1; k < source_count; ++k) {
      sum = add_vectors(sum, hn::LoadU(Sums(), static_cast<const std::uint64_t*>(sources[k]) + i));
    }
    hn::StoreU(sum, Sums(), to + i);
  }
  const void* rest[kReduceSourcesMax];
  for (int k = 0; k < source_count; ++k) {
    rest[k] = static_cast<const std::uint64_t*>(sources[k]) + i;
  }
  binned::add_elements<std::uint64_t>(to + i, rest, source_count, count - i, 1);
}

// What a vector of sums stands for, over the divisor, as doubles: (upper << width) + lower has less
// than 54 bits, the power of two is exact, and a quotient of so few bits does not round to the
// middle of two float32.
template <int kWidth>
HWY_INLINE hn::Vec<Doubles> numbers(hn::Vec<Sums> sums, hn::Vec<Doubles> divisor, bool divide) {
  const SignedSums s;
  const hn::Vec<SignedSums> value = values(sums);
  const hn::Vec<SignedSums> upper =
      hn::ShiftRight<binned::kLowerBits>(hn::Add(value, hn::Set(s, binned::kLowerHalf)));
  const hn::Vec<SignedSums> lower = hn::Sub(value, hn::ShiftLeft<binned::kLowerBits>(upper));
  const hn::Vec<SignedSums> whole = hn::Add(hn::ShiftLeft<kWidth>(upper), lower);
  const hn::Vec<Sums> bin = hn::ShiftRight<binned::kNarrowBinShift>(sums);
  const hn::Vec<Sums> sixteen = hn::ShiftLeft<4>(bin);
  const hn::Vec<Sums> position = kWidth == binned::kSmallWidth
                                     ? hn::Add(sixteen, hn::ShiftLeft<2>(bin))
                                     : hn::Add(sixteen, hn::Sub(hn::ShiftLeft<3>(bin), bin));
  constexpr std::uint64_t kBias = 1023 + binned::kNarrowBase - kWidth;
  const hn::Vec<Doubles> power =
      hn::BitCast(Doubles(), hn::ShiftLeft<52>(hn::Add(position, hn::Set(Sums(), kBias))));
  const hn::Vec<Doubles> number = hn::Mul(hn::ConvertTo(Doubles(), whole), power);
  return divide ? hn::Div(number, divisor) : number;
}

template <class Lanes, int kWidth>
void unbin_lanes(void* dst, const void* sums, std::size_t count, std::int32_t divisor) {
  using Format = binned::NarrowFormat<typename Lanes::Number, kWidth>;
  constexpr std::size_t kLanes = hn::MaxLanes(Sums());
  constexpr std::size_t kWord = sizeof(typename Format::Word);
  const Doubles d;
  const auto* const from = static_cast<const std::uint64_t*>(sums);
  char* const to = static_cast<char*>(dst);
  const hn::Vec<Doubles> by = hn::Set(d, static_cast<double>(divisor));
  const hn::Vec<Doubles> least = hn::Set(d, 0x1p-126);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const hn::Vec<Sums> sum = hn::LoadU(Sums(), from + i);
    const hn::Vec<SignedSums> bin =
        hn::BitCast(SignedSums(), hn::ShiftRight<binned::kNarrowBinShift>(sum));
    const hn::Vec<Doubles> number = numbers<kWidth>(sum, by, divisor != 1);
    // -0, specials, and float32 denormals, which the thread's mode may flush, go one by one.
    const auto small = hn::RebindMask(
        SignedSums(), hn::And(hn::Lt(hn::Abs(number), least), hn::Ne(number, hn::Zero(d))));
    const auto zero = hn::Eq(bin, hn::Zero(SignedSums()));
    const auto special =
        hn::Eq(bin, hn::Set(SignedSums(), static_cast<std::int64_t>(binned::kNarrowSpecial)));
    if (HWY_UNLIKELY(!hn::AllFalse(SignedSums(), hn::Or(small, hn::Or(zero, special))))) {
      binned::unbin_elements<Format>(to + i * kWord, from + i, kLanes, divisor);
    } else {
      Lanes::store(number, to + i * kWord);
    }
  }
  binned::unbin_elements<Format>(to + i * kWord, from + i, count - i, divisor);
}

template <class Lanes, int kWidth>
void set_lanes(BinnedKernels* kernels) {
  kernels->bin = &bin_lanes<Lanes, kWidth>;
  kernels->add = &add_narrow;
  kernels->unbin = &unbin_lanes<Lanes, kWidth>;
}

}  // namespace

void fill_binned(BinnedTable& table) {
  set_lanes<SingleLanes, binned::kSingleWidth>(&table.narrow_of(DType::kFloat32));
  set_lanes<BFloat16Lanes, binned::kSmallWidth>(&table.narrow_of(DType::kBFloat16));
  set_lanes<HalfLanes, binned::kSmallWidth>(&table.narrow_of(DType::kFloat16));
}
#else
void fill_binned(BinnedTable& /*table*/) {}
#endif
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(fill_binned);

BinnedTable resolve_binned_table() {
  BinnedTable table = binned_scalar_table();
  HWY_DYNAMIC_DISPATCH(fill_binned)(table);
  return table;
}

}  // namespace isthmus
#endif
