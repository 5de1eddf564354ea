#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/element.h"
#include "kernels/float16.h"
#include "kernels/float8.h"

namespace isthmus::binned {

// One binned sum at a time, in integer arithmetic: the scalar reference of binned.h, what SIMD
// kernels do their rest with, and where the formats are written down. Internal to kernels/. Pure
// functions, any thread.

// Positions of bits count from the least denormal: bit p of a float32 weighs 2^(p - 149), of what
// is in wide sums 2^(p - 1074). Bin b has positions [b x width, (b + 1) x width). Bin 0, where no
// number's top bit can be, is that of -0, which every other number outweighs.
inline constexpr int kNarrowBase = -149;
inline constexpr int kWideBase = -1074;

// Widths: for float32 and up to 64 operands; for narrower types and up to 512; for float64 and up
// to 1000, for all and up to a million. operands x 2^width stays below 2^29 or 2^60.
inline constexpr int kSingleWidth = 23;
inline constexpr int kSmallWidth = 20;
inline constexpr int kWideWidth = 50;
inline constexpr int kWidestWidth = 40;
inline constexpr std::uint64_t kSingleOperandsMax = 64;
inline constexpr std::uint64_t kSmallOperandsMax = 512;
inline constexpr std::uint64_t kWideOperandsMax = 1000;

inline constexpr int kNarrowBinShift = 60;
inline constexpr int kLowerBits = 30;
inline constexpr std::int64_t kLowerHalf = std::int64_t{1} << (kLowerBits - 1);
inline constexpr std::uint64_t kNarrowMask = (std::uint64_t{1} << kNarrowBinShift) - 1;

// Infinities and NaNs outweigh all numbers and are counted.
inline constexpr std::uint64_t kNarrowSpecial = 15;
inline constexpr std::uint64_t kWideSpecial = 63;
inline constexpr int kNanShift = 40;
inline constexpr int kPlusShift = 20;

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

enum class Special : std::uint8_t { kNan, kPlus, kMinus };

struct WideSum {
  std::uint64_t upper;
  std::uint64_t lower;
};

inline std::uint64_t pack_narrow(std::uint64_t bin, std::int64_t value) {
  return (bin << kNarrowBinShift) | (static_cast<std::uint64_t>(value) & kNarrowMask);
}

inline std::int64_t narrow_value(std::uint64_t sum) {
  return static_cast<std::int64_t>(sum << 4) >> 4;
}

inline WideSum pack_wide(std::uint64_t bin, std::int64_t upper, std::int64_t lower) {
  return {(static_cast<std::uint64_t>(upper) << 3) | (bin & 7),
          (static_cast<std::uint64_t>(lower) << 3) | (bin >> 3)};
}

inline std::uint64_t wide_bin(const WideSum& sum) {
  return (sum.upper & 7) | ((sum.lower & 7) << 3);
}

// The parts of a number in two bins: significand x 2^position, without its sign.
template <int kWidth>
struct Parts {
  std::uint64_t bin = 0;
  std::int64_t upper = 0;
  std::int64_t lower = 0;

  // top: the bit of the significand that says the bin.
  Parts(std::uint64_t significand, int position, int top) {
    bin = static_cast<std::uint64_t>((position + top) / kWidth);
    const int below = static_cast<int>(bin) * kWidth - position;  // bits under the upper bin: >= 1
    upper = static_cast<std::int64_t>((significand + (std::uint64_t{1} << (below - 1))) >> below);
    const std::int64_t rest = static_cast<std::int64_t>(significand) - (upper << below);
    const int spare = kWidth - below;
    lower = spare >= 0 ? static_cast<std::int64_t>(static_cast<std::uint64_t>(rest) << spare)
                       : (rest + (std::int64_t{1} << (-spare - 1))) >> -spare;
  }
};

template <int kWidth>
std::uint64_t narrow_sum(std::uint32_t bits) {
  constexpr std::uint32_t kSign = 0x80000000U;
  const bool negative = (bits & kSign) != 0;
  const std::uint32_t exponent = (bits >> 23) & 0xFFU;
  const std::uint32_t fraction = bits & 0x7FFFFFU;
  if (bits == kSign) {
    return 0;
  }
  if (exponent == 0xFFU) {
    const int shift = fraction != 0 ? kNanShift : negative ? 0 : kPlusShift;
    return pack_narrow(kNarrowSpecial, std::int64_t{1} << shift);
  }
  const std::uint32_t significand = exponent == 0 ? fraction : fraction | 0x800000U;
  const int position = exponent == 0 ? 0 : static_cast<int>(exponent) - 1;
  const Parts<kWidth> parts(significand, position, 23);
  const std::int64_t value = (parts.upper << kLowerBits) + parts.lower;
  return pack_narrow(parts.bin, negative ? -value : value);
}

inline WideSum wide_special(Special special) {
  return pack_wide(kWideSpecial, special == Special::kNan ? 1 : 0,
                   special == Special::kPlus    ? 1
                   : special == Special::kMinus ? std::int64_t{1} << 30
                                                : 0);
}

// significand: 53 bits.
template <int kWidth>
WideSum wide_parts(bool negative, std::uint64_t significand, int position) {
  const Parts<kWidth> parts(significand, position, 52);
  return negative ? pack_wide(parts.bin, -parts.upper, -parts.lower)
                  : pack_wide(parts.bin, parts.upper, parts.lower);
}

template <int kWidth>
WideSum wide_sum(std::uint64_t bits) {
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
  const bool negative = (bits & kSign) != 0;
  const std::uint64_t exponent = (bits >> 52) & 0x7FFU;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  if (bits == kSign) {
    return {0, 0};
  }
  if (exponent == 0x7FFU) {
    return wide_special(fraction != 0 ? Special::kNan
                        : negative    ? Special::kMinus
                                      : Special::kPlus);
  }
  return wide_parts<kWidth>(negative,
                            exponent == 0 ? fraction : fraction | (std::uint64_t{1} << 52),
                            exponent == 0 ? 0 : static_cast<int>(exponent) - 1);
}

// Of a float32, whose significand is shifted up to 53 bits: exact, also for denormals.
template <int kWidth>
WideSum wide_sum(std::uint32_t bits) {
  constexpr std::uint32_t kSign = 0x80000000U;
  const bool negative = (bits & kSign) != 0;
  const std::uint32_t exponent = (bits >> 23) & 0xFFU;
  const std::uint32_t fraction = bits & 0x7FFFFFU;
  if (bits == kSign) {
    return {0, 0};
  }
  if (exponent == 0xFFU) {
    return wide_special(fraction != 0 ? Special::kNan
                        : negative    ? Special::kMinus
                                      : Special::kPlus);
  }
  constexpr int kShift = 52 - 23;
  const std::uint64_t significand = exponent == 0 ? fraction : fraction | 0x800000U;
  const int position =
      (exponent == 0 ? 0 : static_cast<int>(exponent) - 1) + kNarrowBase - kWideBase - kShift;
  return wide_parts<kWidth>(negative, significand << kShift, position);
}

inline std::uint64_t add_sums(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t bin_a = a >> kNarrowBinShift;
  const std::uint64_t bin_b = b >> kNarrowBinShift;
  const std::uint64_t bin = bin_a > bin_b ? bin_a : bin_b;
  const auto part = [bin](std::uint64_t sum, std::uint64_t own) -> std::int64_t {
    if (own == bin) {
      return narrow_value(sum);
    }
    const bool next = own + 1 == bin && bin != kNarrowSpecial;
    return next ? (narrow_value(sum) + kLowerHalf) >> kLowerBits : 0;
  };
  return pack_narrow(bin, part(a, bin_a) + part(b, bin_b));
}

inline WideSum add_sums(const WideSum& a, const WideSum& b) {
  const std::uint64_t bin_a = wide_bin(a);
  const std::uint64_t bin_b = wide_bin(b);
  if (bin_a == bin_b) {
    // The bits of the bin stay as they are in a.
    return {a.upper + (b.upper & ~std::uint64_t{7}), a.lower + (b.lower & ~std::uint64_t{7})};
  }
  const WideSum& high = bin_a > bin_b ? a : b;
  const WideSum& low = bin_a > bin_b ? b : a;
  const bool next = wide_bin(low) + 1 == wide_bin(high);
  return {high.upper, high.lower + (next ? low.upper & ~std::uint64_t{7} : 0)};
}

// A sum as a number: (negative ? -1 : 1) x magnitude x 2^exponent, or special.
struct Number {
  bool negative = false;
  bool infinite = false;
  bool nan = false;
  Uint128 magnitude = 0;
  int exponent = 0;

  static Number of(Int128 value, int exponent) {
    const auto bits = static_cast<Uint128>(value);
    return {.negative = value < 0, .magnitude = value < 0 ? -bits : bits, .exponent = exponent};
  }

  static Number special(bool nan, bool plus, bool minus) {
    return {.negative = minus, .infinite = true, .nan = nan || (plus && minus)};
  }
};

template <int kWidth>
Number number_of(std::uint64_t sum) {
  const std::uint64_t bin = sum >> kNarrowBinShift;
  const std::int64_t value = narrow_value(sum);
  if (bin == 0) {
    return {.negative = true};
  }
  if (bin == kNarrowSpecial) {
    const auto counts = static_cast<std::uint64_t>(value);
    constexpr std::uint64_t kMask = (std::uint64_t{1} << kPlusShift) - 1;
    return Number::special(counts >> kNanShift != 0, ((counts >> kPlusShift) & kMask) != 0,
                           (counts & kMask) != 0);
  }
  const std::int64_t upper = (value + kLowerHalf) >> kLowerBits;
  const std::int64_t lower = value - upper * (std::int64_t{1} << kLowerBits);
  return Number::of(upper * (std::int64_t{1} << kWidth) + lower,
                    (static_cast<int>(bin) - 1) * kWidth + kNarrowBase);
}

template <int kWidth>
Number number_of(const WideSum& sum) {
  const std::uint64_t bin = wide_bin(sum);
  const std::int64_t upper = static_cast<std::int64_t>(sum.upper) >> 3;
  const std::int64_t lower = static_cast<std::int64_t>(sum.lower) >> 3;
  if (bin == 0) {
    return {.negative = true};
  }
  if (bin == kWideSpecial) {
    constexpr std::int64_t kMask = (std::int64_t{1} << 30) - 1;
    return Number::special(upper != 0, (lower & kMask) != 0, lower >> 30 != 0);
  }
  return Number::of(static_cast<Int128>(upper) * (std::int64_t{1} << kWidth) + lower,
                    (static_cast<int>(bin) - 1) * kWidth + kWideBase);
}

inline int width_of(Uint128 value) {
  const auto high = static_cast<std::uint64_t>(value >> 64);
  return high != 0 ? 64 + static_cast<int>(std::bit_width(high))
                   : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value)));
}

// The bits, without a sign, of a number that is not special, over a divisor: of an IEEE format with
// so many bits of significand, whose least denormal is 2^least. To nearest even; to_odd: cut, with
// the last bit set where anything was lost, for a second rounding to a narrower format.
inline std::uint64_t ieee_bits(const Number& number, std::int32_t divisor, int significand,
                               int least, std::uint64_t infinity, bool to_odd) {
  if (number.magnitude == 0) {
    return 0;
  }
  Uint128 value = number.magnitude;
  int exponent = number.exponent;
  bool lost = false;
  if (divisor != 1) {
    const int up = 127 - width_of(value);
    value <<= up;
    exponent -= up;
    lost = value % static_cast<std::uint32_t>(divisor) != 0;
    value /= static_cast<std::uint32_t>(divisor);
  }
  int last = exponent + width_of(value) - significand;
  last = last < least ? least : last;
  const int down = last - exponent;
  std::uint64_t kept = 0;
  if (down <= 0) {
    kept = static_cast<std::uint64_t>(value << -down) | (to_odd && lost ? 1 : 0);
  } else if (down > 127) {
    kept = to_odd ? 1 : 0;
  } else {
    const Uint128 rest = value & ((static_cast<Uint128>(1) << down) - 1);
    const Uint128 half = static_cast<Uint128>(1) << (down - 1);
    kept = static_cast<std::uint64_t>(value >> down);
    if (to_odd) {
      kept |= lost || rest != 0 ? 1 : 0;
    } else {
      kept += rest > half || (rest == half && (lost || (kept & 1) != 0)) ? 1 : 0;
    }
  }
  // A significand that has its top bit adds 1 to the exponent; so does one that was rounded up.
  const std::uint64_t bits = (static_cast<std::uint64_t>(last - least) << (significand - 1)) + kept;
  return bits < infinity ? bits : infinity;
}

template <class Storage, int kSignificand, int kLeast, std::uint64_t kInfinity, std::uint64_t kNan>
struct IeeeResult {
  using Word = Storage;

  static Storage from(const Number& number, std::int32_t divisor) {
    if (number.nan) {
      return static_cast<Storage>(kNan);
    }
    constexpr int kSignBit = 8 * sizeof(Storage) - 1;
    const std::uint64_t magnitude =
        number.infinite ? kInfinity
                        : ieee_bits(number, divisor, kSignificand, kLeast, kInfinity, false);
    return static_cast<Storage>((std::uint64_t{number.negative} << kSignBit) | magnitude);
  }
};

template <class Format>
struct Float8Result {
  using Word = std::uint8_t;

  static std::uint8_t from(const Number& number, std::int32_t divisor) {
    float value = std::numeric_limits<float>::quiet_NaN();
    if (!number.nan) {
      const std::uint64_t bits =
          number.infinite ? 0x7F800000U : ieee_bits(number, divisor, 24, -149, 0x7F800000U, true);
      value = std::bit_cast<float>(static_cast<std::uint32_t>(bits) |
                                   (std::uint32_t{number.negative} << 31));
    }
    return float8_from_float<Format>(value);
  }
};

// What is known of a type: its float32 or float64 bits, and its result.
struct SingleNumber : IeeeResult<std::uint32_t, 24, -149, 0x7F800000U, 0x7FC00000U> {
  static std::uint32_t bits(std::uint32_t word) { return word; }
};

struct DoubleNumber
    : IeeeResult<std::uint64_t, 53, -1074, 0x7FF0000000000000U, 0x7FF8000000000000U> {
  static std::uint64_t bits(std::uint64_t word) { return word; }
};

struct HalfNumber : IeeeResult<std::uint16_t, 11, -24, 0x7C00U, kHalfNan> {
  static std::uint32_t bits(std::uint16_t word) {
    return std::bit_cast<std::uint32_t>(float_from_half(word));
  }
};

struct BFloat16Number : IeeeResult<std::uint16_t, 8, -133, 0x7F80U, kBFloat16Nan> {
  static std::uint32_t bits(std::uint16_t word) { return std::uint32_t{word} << 16; }
};

template <class Format>
struct Float8Number : Float8Result<Format> {
  static std::uint32_t bits(std::uint8_t word) {
    return std::bit_cast<std::uint32_t>(float_from_float8<Format>(word));
  }
};

template <class Type, int kWidth>
struct NarrowFormat {
  using Word = typename Type::Word;
  using Sum = std::uint64_t;

  static Sum bin(Word word) { return narrow_sum<kWidth>(Type::bits(word)); }

  static Word unbin(Sum sum, std::int32_t divisor) {
    return Type::from(number_of<kWidth>(sum), divisor);
  }
};

template <class Type, int kWidth>
struct WideFormat {
  using Word = typename Type::Word;
  using Sum = WideSum;

  static Sum bin(Word word) { return wide_sum<kWidth>(Type::bits(word)); }

  static Word unbin(const Sum& sum, std::int32_t divisor) {
    return Type::from(number_of<kWidth>(sum), divisor);
  }
};

template <class Format>
void bin_elements(void* sums, const void* src, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    element_store(sums, i, Format::bin(element_load<typename Format::Word>(src, i)));
  }
}

template <class Format>
void unbin_elements(void* dst, const void* sums, std::size_t count, std::int32_t divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    element_store(dst, i, Format::unbin(element_load<typename Format::Sum>(sums, i), divisor));
  }
}

// A ReduceFn.
template <class Sum>
void add_elements(void* dst, const void* const* sources, int source_count, std::size_t count,
                  std::int32_t /*divisor*/) {
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum = element_load<Sum>(sources[0], i);
    for (int k = 1; k < source_count; ++k) {
      sum = add_sums(sum, element_load<Sum>(sources[k], i));
    }
    element_store(dst, i, sum);
  }
}

}  // namespace isthmus::binned
