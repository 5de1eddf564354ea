#pragma once

#include <bit>
#include <cstdint>

namespace isthmus {

// Conversions between float32 and the two 16-bit formats, in integer arithmetic: they do not depend
// on the rounding or flush-to-zero mode of the thread. Narrowing rounds to nearest even and turns
// every NaN into the positive quiet one; widening is exact and keeps a NaN's payload.

inline constexpr std::uint16_t kHalfNan = 0x7E00;
inline constexpr std::uint16_t kBFloat16Nan = 0x7FC0;

constexpr float float_from_bfloat16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

constexpr std::uint16_t bfloat16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return kBFloat16Nan;
  }
  // The largest finite values carry into infinity, as they should.
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float float_from_half(std::uint16_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1Fu;
  const std::uint32_t mantissa = value & 0x3FFu;
  if (exponent == 0x1Fu) {
    return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
  if (mantissa == 0) {
    return std::bit_cast<float>(sign);
  }
  // A denormal is mantissa * 2^-24; in float32 it is normal, with its top bit made implicit.
  const std::uint32_t top = static_cast<std::uint32_t>(std::bit_width(mantissa)) - 1u;
  return std::bit_cast<float>(sign | ((top + 103u) << 23) |
                              ((mantissa << (23u - top)) & 0x7FFFFFu));
}

constexpr std::uint16_t half_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return kHalfNan;
  }
  std::uint32_t result = 0;
  if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity.
    result = 0x7C00u;
  } else if (magnitude >= 0x38800000u) {  // From 2^-14 on the result is normal.
    result = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude > 0x33000000u) {  // Above 2^-25, half of the least denormal.
    const std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t shift = 126u - (magnitude >> 23);  // 14..24
    const std::uint32_t half = 1u << (shift - 1u);
    result = (mantissa + half - 1u + ((mantissa >> shift) & 1u)) >> shift;
  }
  return static_cast<std::uint16_t>(sign | result);
}

}  // namespace isthmus
