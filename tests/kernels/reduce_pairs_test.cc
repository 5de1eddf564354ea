// Goal: reductions of 8-bit types and of 16-bit integers, and the factor of PREMUL_SUM, are right
// for every bit pattern on every SIMD target.
// Method: all 65,536 pairs of bytes, all 65,536 words with peculiar partners, against arithmetic of
// this file in int64 and float64; triples and factors against the scalar reference, bit for bit.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/float16.h"
#include "kernels/reduce.h"
#include "tests/kernels/float8_format.h"
#include "tests/kernels/targets.h"

namespace isthmus {
namespace {

constexpr std::size_t kPatterns = 0x10000;
constexpr int kDivisor = 3;

// One byte of every pair of bytes: the first, or the second.
std::vector<std::uint8_t> pairs(bool second) {
  std::vector<std::uint8_t> result(kPatterns);
  for (std::size_t i = 0; i < kPatterns; ++i) {
    result[i] = static_cast<std::uint8_t>(second ? i >> 8 : i);
  }
  return result;
}

std::int64_t combined_integers(RedOp op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case RedOp::kAvg:
      return (a + b) / kDivisor;
    case RedOp::kMin:
      return std::min(a, b);
    case RedOp::kMax:
      return std::max(a, b);
    case RedOp::kProd:
      return a * b;
    case RedOp::kBand:
      return a & b;
    case RedOp::kBor:
      return a | b;
    case RedOp::kBxor:
      return a ^ b;
    default:
      return a + b;
  }
}

std::uint8_t combined_floats(const test::Format8& format, RedOp op, double a, double b) {
  switch (op) {
    case RedOp::kAvg:  // The quotient is one of float32.
      return format.round(static_cast<double>(static_cast<float>(a + b) / float{kDivisor}));
    case RedOp::kProd:
      return format.round(a * b);
    case RedOp::kMin:
    case RedOp::kMax: {
      if (std::isnan(a) || std::isnan(b)) {
        return format.nan();
      }
      const bool first =
          a == b ? std::signbit(a) == (op == RedOp::kMin) : (a < b) == (op == RedOp::kMin);
      return format.round(first ? a : b);
    }
    default:
      return format.round(a + b);
  }
}

const test::Format8& format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4m3fn:
      return test::e4m3fn();
    case DType::kFloat8E5m2:
      return test::e5m2();
    case DType::kFloat8E4m3fnuz:
      return test::e4m3fnuz();
    default:
      return test::e5m2fnuz();
  }
}

std::uint8_t expected_byte(DType dtype, RedOp op, std::uint8_t a, std::uint8_t b) {
  switch (dtype) {
    case DType::kInt8:
      return static_cast<std::uint8_t>(
          combined_integers(op, static_cast<std::int8_t>(a), static_cast<std::int8_t>(b)));
    case DType::kUint8:
      return static_cast<std::uint8_t>(combined_integers(op, a, b));
    case DType::kBool: {
      const std::int64_t x = a != 0 ? 1 : 0;
      const std::int64_t y = b != 0 ? 1 : 0;
      return combined_integers(op, x, y) != 0 ? 1 : 0;
    }
    default: {
      const test::Format8& format = format_of(dtype);
      return combined_floats(format, op, format.value(a), format.value(b));
    }
  }
}

class Bytes8 : public testing::TestWithParam<DType> {};

TEST_P(Bytes8, EveryPairOnEveryTarget) {
  const DType dtype = GetParam();
  const std::vector<std::uint8_t> first = pairs(false);
  const std::vector<std::uint8_t> second = pairs(true);
  const void* sources[] = {first.data(), second.data()};
  for (const RedOp op : test::ops_of(dtype)) {
    std::vector<std::uint8_t> want(kPatterns);
    for (std::size_t i = 0; i < kPatterns; ++i) {
      want[i] = expected_byte(dtype, op, first[i], second[i]);
    }
    for (const test::Target& target : test::runnable_targets()) {
      std::vector<std::uint8_t> got(kPatterns);
      target.table.at(dtype, op)(got.data(), sources, 2, kPatterns, kDivisor);
      for (std::size_t i = 0; i < kPatterns; ++i) {
        ASSERT_EQ(static_cast<int>(got[i]), static_cast<int>(want[i]))
            << test::label(target, dtype, op) << " of " << int{first[i]} << " and "
            << int{second[i]};
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Bytes8,
                         testing::Values(DType::kInt8, DType::kUint8, DType::kBool,
                                         DType::kFloat8E4m3fn, DType::kFloat8E5m2,
                                         DType::kFloat8E4m3fnuz, DType::kFloat8E5m2fnuz),
                         [](const testing::TestParamInfo<DType>& param) {
                           return std::string(dtype_name(param.param));
                         });

template <class T>
void check_words(DType dtype) {
  std::vector<T> left(kPatterns);
  for (std::size_t i = 0; i < kPatterns; ++i) {
    left[i] = static_cast<T>(i);
  }
  for (const int partner : {0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x1234}) {
    const std::vector<T> right(kPatterns, static_cast<T>(partner));
    const void* sources[] = {left.data(), right.data()};
    for (const RedOp op : test::ops_of(dtype)) {
      for (const test::Target& target : test::runnable_targets()) {
        std::vector<T> got(kPatterns);
        target.table.at(dtype, op)(got.data(), sources, 2, kPatterns, kDivisor);
        for (std::size_t i = 0; i < kPatterns; ++i) {
          ASSERT_EQ(got[i], static_cast<T>(combined_integers(op, left[i], right[i])))
              << test::label(target, dtype, op) << " of " << left[i] << " and " << right[i];
        }
      }
    }
  }
}

TEST(Words, Int16) {
  check_words<std::int16_t>(DType::kInt16);
}

TEST(Words, Uint16) {
  check_words<std::uint16_t>(DType::kUint16);
}

// Every pattern times a factor, rounded once from the product in float32.
TEST(Factors, EveryPatternOfTheSmallFloats) {
  std::vector<std::uint16_t> words(kPatterns);
  for (std::size_t i = 0; i < kPatterns; ++i) {
    words[i] = static_cast<std::uint16_t>(i);
  }
  const std::vector<std::uint8_t> bytes = pairs(false);
  for (const test::Target& target : test::runnable_targets()) {
    for (const double factor : {0.5, 1.0 / 3, -7.0, 1e-3, 65536.0}) {
      const float by = static_cast<float>(factor);
      std::vector<std::uint16_t> got(kPatterns);
      target.table.scale_of(DType::kFloat16)(got.data(), words.data(), kPatterns, factor);
      for (std::size_t i = 0; i < kPatterns; ++i) {
        ASSERT_EQ(got[i], half_from_float(float_from_half(words[i]) * by)) << target.name << i;
      }
      target.table.scale_of(DType::kBFloat16)(got.data(), words.data(), kPatterns, factor);
      for (std::size_t i = 0; i < kPatterns; ++i) {
        ASSERT_EQ(got[i], bfloat16_from_float(float_from_bfloat16(words[i]) * by))
            << target.name << i;
      }
      for (const DType dtype : {DType::kFloat8E4m3fn, DType::kFloat8E5m2, DType::kFloat8E4m3fnuz,
                                DType::kFloat8E5m2fnuz}) {
        std::vector<std::uint8_t> scaled(256);
        target.table.scale_of(dtype)(scaled.data(), bytes.data(), 256, factor);
        const test::Format8& format = format_of(dtype);
        for (std::size_t i = 0; i < 256; ++i) {
          const float product = static_cast<float>(format.value(bytes[i])) * by;
          ASSERT_EQ(int{scaled[i]}, int{format.round(static_cast<double>(product))})
              << target.name << " " << dtype_name(dtype) << " " << i << " by " << factor;
        }
      }
    }
  }
}

}  // namespace
}  // namespace isthmus
