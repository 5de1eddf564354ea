#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace isthmus {

// Conversions between float32 and the 8-bit formats, in integer arithmetic: they do not depend on
// the rounding or flush-to-zero mode of the thread. Widening is exact and gives every NaN as the
// positive quiet one without payload; narrowing rounds to nearest even and turns every NaN into
// kNan. What is too large, or infinite, becomes what torch makes of it: infinity in e5m2, the
// largest number in e4m3fn (NCCL's choice too), NaN in the fnuz formats.

enum class Float8Kind : std::uint8_t {
  kIeee,  // infinities and NaNs in the last exponent
  kFn,    // finite but for one NaN of each sign, 0x7F and 0xFF
  kFnuz,  // finite but for one NaN, 0x80, in the place of the negative zero
};

template <int kMantissaBitsIn, int kBiasIn, Float8Kind kKindIn>
struct Float8Format {
  static constexpr int kMantissaBits = kMantissaBitsIn;
  static constexpr int kBias = kBiasIn;
  static constexpr Float8Kind kKind = kKindIn;
  static constexpr std::uint8_t kNan = kKind == Float8Kind::kFnuz ? 0x80 : 0x7F;
  // The greatest pattern that is no NaN: an infinity if there is one.
  static constexpr std::uint8_t kLast = kKind == Float8Kind::kIeee   ? 0x7C
                                        : kKind == Float8Kind::kFnuz ? 0x7F
                                                                     : 0x7E;
};

using Float8E4m3fn = Float8Format<3, 7, Float8Kind::kFn>;
using Float8E5m2 = Float8Format<2, 15, Float8Kind::kIeee>;
using Float8E4m3fnuz = Float8Format<3, 8, Float8Kind::kFnuz>;
using Float8E5m2fnuz = Float8Format<2, 16, Float8Kind::kFnuz>;

namespace float8_detail {

inline constexpr std::uint32_t kNanBits = 0x7FC00000u;

template <class Format>
constexpr std::uint32_t widened_bits(std::uint32_t value) {
  const std::uint32_t sign = (value & 0x80u) << 24;
  const std::uint32_t magnitude = value & 0x7Fu;
  constexpr std::uint32_t kShift = 23u - static_cast<std::uint32_t>(Format::kMantissaBits);
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format::kBias);
  if (magnitude > Format::kLast || (Format::kKind == Float8Kind::kFnuz && value == Format::kNan)) {
    return kNanBits;
  }
  if (Format::kKind == Float8Kind::kIeee && magnitude == Format::kLast) {
    return sign | 0x7F800000u;
  }
  const std::uint32_t exponent = magnitude >> Format::kMantissaBits;
  if (exponent != 0) {
    return sign | ((magnitude << kShift) + (kRebias << 23));
  }
  if (magnitude == 0) {
    return sign;
  }
  // A denormal: in float32 it is normal, with its top bit made implicit.
  const std::uint32_t top = static_cast<std::uint32_t>(std::bit_width(magnitude)) - 1u;
  const std::uint32_t power =
      kRebias + 1u + top - static_cast<std::uint32_t>(Format::kMantissaBits);
  return sign | (power << 23) | ((magnitude << (23u - top)) & 0x7FFFFFu);
}

template <class Format>
constexpr std::array<std::uint32_t, 256> widened_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t value = 0; value < 256; ++value) {
    table[value] = widened_bits<Format>(value);
  }
  return table;
}

template <class Format>
inline constexpr std::array<std::uint32_t, 256> kWidened = widened_table<Format>();

}  // namespace float8_detail

template <class Format>
constexpr float float_from_float8(std::uint8_t value) {
  return std::bit_cast<float>(float8_detail::kWidened<Format>[value]);
}

template <class Format>
constexpr std::uint8_t float8_from_float(float value) {
  constexpr std::uint32_t kShift = 23u - static_cast<std::uint32_t>(Format::kMantissaBits);
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format::kBias);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return Format::kNan;
  }
  std::uint32_t result = 0;
  const std::uint32_t exponent = magnitude >> 23;
  if (exponent > kRebias) {  // The result is normal, or too large.
    const std::uint32_t half = (1u << (kShift - 1u)) - 1u + ((magnitude >> kShift) & 1u);
    result = (magnitude - (kRebias << 23) + half) >> kShift;
  } else if (const std::uint32_t shift = kShift + 1u + kRebias - exponent; shift <= 24u) {
    const std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t half = 1u << (shift - 1u);
    result = (mantissa + half - 1u + ((mantissa >> shift) & 1u)) >> shift;
  }
  if (result > Format::kLast) {
    if (Format::kKind == Float8Kind::kFnuz) {
      return Format::kNan;
    }
    result = Format::kLast;
  }
  if (Format::kKind == Float8Kind::kFnuz && result == 0) {
    return 0;
  }
  return static_cast<std::uint8_t>(sign | result);
}

}  // namespace isthmus
