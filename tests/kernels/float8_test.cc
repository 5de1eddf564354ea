// Goal: the float8 conversions are exact, round to nearest even and overflow as torch's do.
// Method: every 8-bit pattern; for narrowing the float32 neighbourhood of every number and of every
// midpoint, and random bits, against the formats' definition in float64.
#include "kernels/float8.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include <gtest/gtest.h>

#include "tests/kernels/float8_format.h"

namespace isthmus {
namespace {

constexpr std::uint64_t kSeed = 80808;

template <class Format>
void check_narrow(const test::Format8& format, float value) {
  ASSERT_EQ(float8_from_float<Format>(value), format.round(static_cast<double>(value)))
      << value << " bits " << std::bit_cast<std::uint32_t>(value);
}

template <class Format>
void check_format(const test::Format8& format) {
  SCOPED_TRACE(kSeed);
  for (int i = 0; i < 256; ++i) {
    const std::uint8_t bits = static_cast<std::uint8_t>(i);
    const double wanted = format.value(bits);
    const float got = float_from_float8<Format>(bits);
    if (std::isnan(wanted)) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got), 0x7FC00000U) << i;
      ASSERT_EQ(float8_from_float<Format>(got), Format::kNan);
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), wanted) << i;
    ASSERT_EQ(std::signbit(got), std::signbit(wanted)) << i;
    ASSERT_EQ(float8_from_float<Format>(got), bits);
    const double next = format.value(static_cast<std::uint8_t>(i == 255 ? i : i + 1));
    const double middle = std::isfinite(next) ? (wanted + next) / 2 : wanted * 1.0625;
    for (const double center : {wanted, middle}) {
      float near = static_cast<float>(center);
      for (int step = 0; step < 3; ++step) {
        near = std::nextafter(near, -INFINITY);
      }
      for (int step = 0; step < 7; ++step) {
        check_narrow<Format>(format, near);
        near = std::nextafter(near, INFINITY);
      }
    }
  }
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 200'000; ++i) {
    check_narrow<Format>(format, std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    // Exponents where the format has numbers.
    const float scale = std::ldexp(1.0F, static_cast<int>(random() % 40) - 22);
    check_narrow<Format>(format, static_cast<float>(random() % 0x1000000) / 0x1000000 * scale);
  }
  for (const float value : {INFINITY, -INFINITY, 0.0F, -0.0F, 1e30F, -1e30F, 1e-40F, -1e-40F}) {
    check_narrow<Format>(format, value);
  }
}

TEST(Float8, E4m3fn) {
  check_format<Float8E4m3fn>(test::e4m3fn());
}

TEST(Float8, E5m2) {
  check_format<Float8E5m2>(test::e5m2());
}

TEST(Float8, E4m3fnuz) {
  check_format<Float8E4m3fnuz>(test::e4m3fnuz());
}

TEST(Float8, E5m2fnuz) {
  check_format<Float8E5m2fnuz>(test::e5m2fnuz());
}

TEST(Float8, KnownNumbers) {
  EXPECT_EQ(float_from_float8<Float8E4m3fn>(0x7E), 448.0F);
  EXPECT_EQ(float_from_float8<Float8E5m2>(0x7B), 57344.0F);
  EXPECT_EQ(float_from_float8<Float8E4m3fnuz>(0x7F), 240.0F);
  EXPECT_EQ(float_from_float8<Float8E5m2fnuz>(0x7F), 57344.0F);
  EXPECT_EQ(float8_from_float<Float8E4m3fn>(464.0F), 0x7E);
  EXPECT_EQ(float8_from_float<Float8E4m3fn>(500.0F), 0x7E);
  EXPECT_EQ(float8_from_float<Float8E4m3fn>(-INFINITY), 0xFE);
  EXPECT_EQ(float8_from_float<Float8E4m3fnuz>(-1e9F), 0x80);
  EXPECT_EQ(float8_from_float<Float8E5m2>(-1e9F), 0xFC);
}

}  // namespace
}  // namespace isthmus
