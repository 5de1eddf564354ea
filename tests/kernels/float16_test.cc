// Goal: the 16-bit conversions are exact, round to nearest even, and treat NaN, infinity and
// denormals as IEEE 754 says. Method: every 16-bit pattern; for narrowing also the float32
// neighbourhood of every midpoint and random bits, against an oracle that measures the distance to
// both candidates in float64.
#include "kernels/float16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include <gtest/gtest.h>

namespace isthmus {
namespace {

// A binary format of 16 bits: its value computed from the definition, without bit tricks.
struct Format {
  int mantissa_bits;
  int bias;
  std::uint16_t infinity;

  double value(std::uint16_t bits) const {
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int exponent = (bits & 0x7FFF) >> mantissa_bits;
    const int scale = std::max(exponent, 1) - bias - mantissa_bits;
    const double magnitude = std::ldexp(mantissa + (exponent == 0 ? 0 : 1 << mantissa_bits), scale);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }

  // Nearest to x, ties to the even pattern, by looking at both neighbours. The first value beyond
  // the finite ones stands for infinity, as in the standard's rounding rule.
  std::uint16_t nearest(double x) const {
    int low = 0;
    int high = infinity;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (value(static_cast<std::uint16_t>(middle)) <= std::fabs(x) ? low : high) = middle;
    }
    const double below = std::fabs(x) - value(static_cast<std::uint16_t>(low));
    const double above = value(static_cast<std::uint16_t>(high)) - std::fabs(x);
    const bool up = above < below || (above == below && high % 2 == 0);
    const int magnitude = up ? high : low;
    return static_cast<std::uint16_t>(magnitude | (std::signbit(x) ? 0x8000 : 0));
  }
};

constexpr Format kHalf{10, 15, 0x7C00};
constexpr Format kBFloat{7, 127, 0x7F80};

template <class Widen>
void check_widening(const Format& format, Widen widen) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const std::uint16_t bits = static_cast<std::uint16_t>(i);
    const float got = widen(bits);
    const std::uint16_t magnitude = bits & 0x7FFF;
    if (magnitude > format.infinity) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else if (magnitude == format.infinity) {
      EXPECT_EQ(got, (bits & 0x8000) != 0 ? -INFINITY : INFINITY) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), format.value(bits)) << bits;
      ASSERT_EQ(std::signbit(got), (bits & 0x8000) != 0) << bits;
    }
  }
}

template <class Narrow>
void check_narrowing_of(const Format& format, float x, std::uint16_t nan, Narrow narrow) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) {
    ASSERT_EQ(narrow(x), nan) << std::hex << bits;
  } else if (std::isinf(x)) {
    ASSERT_EQ(narrow(x), format.infinity | (x < 0 ? 0x8000 : 0)) << std::hex << bits;
  } else {
    ASSERT_EQ(narrow(x), format.nearest(static_cast<double>(x))) << std::hex << bits;
  }
}

template <class Narrow>
void check_narrowing(const Format& format, std::uint16_t nan, Narrow narrow) {
  for (std::uint32_t i = 0; i <= format.infinity; ++i) {
    const double here = format.value(static_cast<std::uint16_t>(i));
    const double next = format.value(static_cast<std::uint16_t>(i + 1));
    const float middle = static_cast<float>((here + next) / 2);
    for (const float x : {static_cast<float>(here), middle, std::nextafter(middle, 0.0F),
                          std::nextafter(middle, INFINITY)}) {
      check_narrowing_of(format, x, nan, narrow);
      check_narrowing_of(format, -x, nan, narrow);
    }
  }
  constexpr std::uint32_t kSeed = 20261;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 300000; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    check_narrowing_of(format, std::bit_cast<float>(bits), nan, narrow);
  }
}

TEST(Float16, HalfWidensExactly) {
  check_widening(kHalf, float_from_half);
}

TEST(Float16, BFloat16WidensExactly) {
  check_widening(kBFloat, float_from_bfloat16);
}

TEST(Float16, HalfNarrowsToNearestEven) {
  check_narrowing(kHalf, kHalfNan, half_from_float);
}

TEST(Float16, BFloat16NarrowsToNearestEven) {
  check_narrowing(kBFloat, kBFloat16Nan, bfloat16_from_float);
}

TEST(Float16, KnownValues) {
  static_assert(half_from_float(65504.0F) == 0x7BFF);
  static_assert(half_from_float(65519.996F) == 0x7BFF);
  static_assert(half_from_float(65520.0F) == 0x7C00);
  static_assert(half_from_float(5.9604645e-8F) == 1);
  static_assert(half_from_float(2.9802322e-8F) == 0);
  static_assert(half_from_float(2.9802326e-8F) == 1);
  static_assert(bfloat16_from_float(257.0F) == 0x4380);
  static_assert(bfloat16_from_float(259.0F) == 0x4382);
  static_assert(bfloat16_from_float(3.4028235e38F) == 0x7F80);
}

}  // namespace
}  // namespace isthmus
