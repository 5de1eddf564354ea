// Goal: binned sums are what docs/determinism.md says, in any order and grouping, on every SIMD
// target. Method: the scalar reference against exact arithmetic of its own here (integers of 128
// bits), against IEEE's results for specials, and under random orders and groupings; every target
// against the reference, bit for bit: all 65,536 patterns of the 16-bit types, random float32 of
// all exponents with specials, in sums of several operands, and under flush-to-zero.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "kernels/binned.h"
#include "kernels/binned_element.h"
#include "kernels/binned_table.h"
#include "tests/kernels/targets.h"

namespace isthmus {
namespace {

constexpr unsigned kSeed = 20261130;

// The targets' tables of binned sums, by name.
std::vector<std::pair<std::string, BinnedTable>> targets() {
  std::vector<std::pair<std::string, BinnedTable>> result;
  const std::int64_t runnable = hwy::SupportedTargets() & reduce_compiled_targets();
  for (std::int64_t rest = runnable; rest != 0; rest &= rest - 1) {
    const std::int64_t bit = rest & -rest;
    hwy::SetSupportedTargetsForTest(bit);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    result.emplace_back(hwy::TargetName(bit), resolve_binned_table());
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return result;
}

template <class T>
T bits_as(std::uint64_t bits) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(bits);
  } else {
    return std::bit_cast<T>(static_cast<std::uint32_t>(bits));
  }
}

// The binned sum of operands of one element, added one by one in their order.
template <class T>
T sum_of(const std::vector<T>& operands, RedOp op = RedOp::kSum, std::uint64_t most = 0) {
  const DType dtype = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;
  const std::uint64_t count = most == 0 ? operands.size() : most;
  const BinnedKernels kernels = binned_reference(dtype, op, count);
  std::vector<const void*> sources;
  for (const T& operand : operands) {
    sources.push_back(&operand);
  }
  binned::WideSum sum{};
  bin_operands(kernels, dtype, {.sources = sources.data(), .source_count = sources.size()}, &sum,
               1);
  T result{};
  kernels.unbin(&result, &sum, 1,
                op == RedOp::kAvg ? static_cast<std::int32_t>(operands.size()) : 1);
  return result;
}

template <class T>
bool same_bits(T a, T b) {
  using Word = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  return std::bit_cast<Word>(a) == std::bit_cast<Word>(b);
}

template <class T>
void expect_ieee_specials() {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  constexpr T kMax = std::numeric_limits<T>::max();
  constexpr T kTiny = std::numeric_limits<T>::denorm_min();
  EXPECT_TRUE(same_bits(sum_of<T>({1, kInf, -5}), kInf));
  EXPECT_TRUE(same_bits(sum_of<T>({-kInf, kMax, -kInf}), -kInf));
  EXPECT_TRUE(same_bits(sum_of<T>({kInf, 1, -kInf}), kNan));
  EXPECT_TRUE(same_bits(sum_of<T>({1, -std::bit_cast<T>(kNan), kInf}), kNan));
  EXPECT_TRUE(same_bits(sum_of<T>({T{-0.0}, T{-0.0}}), T{-0.0}));
  EXPECT_TRUE(same_bits(sum_of<T>({T{-0.0}, T{0.0}}), T{0.0}));
  EXPECT_TRUE(same_bits(sum_of<T>({3, -3}), T{0.0}));
  EXPECT_TRUE(same_bits(sum_of<T>({kMax, kMax}), kInf));
  EXPECT_TRUE(same_bits(sum_of<T>({-kMax, -kMax}), -kInf));
  // No sum on the way overflows.
  EXPECT_TRUE(same_bits(sum_of<T>({kMax, kMax, -kMax}), kMax));
  EXPECT_TRUE(same_bits(sum_of<T>({kMax, kMax, kMax}, RedOp::kAvg), kMax));
  EXPECT_TRUE(same_bits(sum_of<T>({kTiny, kTiny, kTiny}), 3 * kTiny));
  EXPECT_TRUE(same_bits(sum_of<T>({kTiny, -2 * kTiny}), -kTiny));
  EXPECT_TRUE(same_bits(sum_of<T>({-kTiny, 0, 0}, RedOp::kAvg), T{-0.0}));
}

TEST(Binned, SpecialsAndZerosAreThoseOfIeee) {
  expect_ieee_specials<float>();
  expect_ieee_specials<double>();
}

// One operand alone comes back as it was, from every format; NaNs become the canonical one.
TEST(Binned, OneOperandIsExact) {
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t bits = random();
    const float single = bits_as<float>(bits);
    for (const std::uint64_t most : {1U, 64U, 65U, 1'000'000U}) {
      const float got = sum_of<float>({single}, RedOp::kSum, most);
      ASSERT_TRUE(std::isnan(single) ? same_bits(got, std::numeric_limits<float>::quiet_NaN())
                                     : same_bits(got, single))
          << std::hexfloat << single << " became " << got << " among " << most;
    }
  }
}

// |error| <= operands x largest operand x 2^-(width + 1), and half a unit of the result.
TEST(Binned, TheErrorIsBounded) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 20'000; ++round) {
    const std::size_t count = 2 + random() % 63;
    std::vector<float> operands(count);
    long double exact = 0;
    float largest = 0;
    for (float& operand : operands) {
      const int exponent = static_cast<int>(random() % (round % 2 == 0 ? 8 : 60)) - 30;
      operand =
          std::ldexp(static_cast<float>(static_cast<std::int64_t>(random())) * 0x1p-63F, exponent);
      exact += static_cast<long double>(operand);
      largest = std::max(largest, std::fabs(operand));
    }
    const float sum = sum_of(operands);
    const long double bound =
        std::ldexp(static_cast<long double>(largest) * static_cast<long double>(count),
                   -(binned::kSingleWidth + 1)) +
        std::ldexp(std::fabs(exact), -24);
    ASSERT_LE(std::fabs(static_cast<long double>(sum) - exact), bound);
    std::vector<double> wide(operands.begin(), operands.end());
    const double wide_sum = sum_of(wide);
    ASSERT_LE(std::fabs(static_cast<long double>(wide_sum) - exact),
              std::ldexp(static_cast<long double>(largest) * static_cast<long double>(count),
                         -(binned::kWideWidth + 1)) +
                  std::ldexp(std::fabs(exact), -53));
  }
}

// Where all bits of all operands fit two bins the sum is exact, and rounded once: as of integers.
TEST(Binned, SumsAndMeansOfIntegersAreRoundedOnce) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 50'000; ++round) {
    const std::size_t count = 1 + random() % 64;
    std::vector<float> operands(count);
    std::int64_t exact = 0;
    for (float& operand : operands) {
      const auto value = static_cast<std::int32_t>(random() % (1U << 24)) - (1 << 23);
      operand = static_cast<float>(value);
      exact += value;
    }
    ASSERT_EQ(sum_of(operands), static_cast<float>(exact));
    ASSERT_EQ(sum_of(operands, RedOp::kAvg), static_cast<float>(static_cast<long double>(exact) /
                                                                static_cast<long double>(count)));
  }
}

// Random words of all exponents, some of them specials and zeros, in `spread` powers of two.
template <class Word>
std::vector<Word> random_words(std::size_t count, std::mt19937_64& random, int sort) {
  std::vector<Word> words(count);
  const Word base = static_cast<Word>(random());
  constexpr int kBits = 8 * sizeof(Word);
  for (Word& word : words) {
    word = static_cast<Word>(random());
    if (sort % 4 == 1) {
      // Exponents that differ by few: the upper bits are alike.
      word = static_cast<Word>((base & ~((Word{1} << (kBits - 5)) - 1)) |
                               (word & ((Word{1} << (kBits - 5)) - 1)));
    } else if (sort % 4 == 2) {
      // Denormals and what is near.
      word &= static_cast<Word>(~(Word{0x3F} << (kBits - 7)));
    } else if (sort % 4 == 3 && random() % 4 == 0) {
      constexpr Word kTop = static_cast<Word>(Word{1} << (kBits - 1));
      word = random() % 2 == 0 ? kTop : Word{0};
    }
  }
  return words;
}

// All orders and trees give one result: random ones do.
template <class Word>
void expect_order_free(DType dtype, std::uint64_t most) {
  std::mt19937_64 random(kSeed);
  const BinnedKernels kernels = binned_reference(dtype, RedOp::kSum, most);
  constexpr std::size_t kOperands = 24;
  for (int round = 0; round < 3000; ++round) {
    std::vector<Word> words = random_words<Word>(kOperands, random, round);
    Word expected{};
    for (int shuffle = 0; shuffle < 6; ++shuffle) {
      std::shuffle(words.begin(), words.end(), random);
      std::vector<binned::WideSum> sums(kOperands);
      for (std::size_t i = 0; i < kOperands; ++i) {
        kernels.bin(&sums[i], &words[i], 1);
      }
      while (sums.size() > 1) {
        const std::size_t a = random() % sums.size();
        std::swap(sums[a], sums.back());
        const binned::WideSum last = sums.back();
        sums.pop_back();
        binned::WideSum& into = sums[random() % sums.size()];
        const void* const both[] = {&into, &last};
        kernels.add(&into, both, 2, 1, 1);
      }
      Word result{};
      kernels.unbin(&result, sums.data(), 1, 1);
      if (shuffle == 0) {
        expected = result;
      }
      ASSERT_EQ(result, expected) << dtype_name(dtype) << ", seed " << kSeed << ", round " << round;
    }
  }
}

TEST(Binned, AnyOrderAndGroupingGiveTheSameBits) {
  for (const std::uint64_t most : {24U, 600U, 5000U}) {
    expect_order_free<std::uint32_t>(DType::kFloat32, most);
    expect_order_free<std::uint64_t>(DType::kFloat64, most);
    expect_order_free<std::uint16_t>(DType::kBFloat16, most);
    expect_order_free<std::uint16_t>(DType::kFloat16, most);
    expect_order_free<std::uint8_t>(DType::kFloat8E4m3fn, most);
    expect_order_free<std::uint8_t>(DType::kFloat8E5m2fnuz, most);
  }
}

// The most operands of a format, each as large as it can be in its bin, do not overflow it.
TEST(Binned, TheMostOperandsFit) {
  const std::vector<float> singles(64, std::bit_cast<float>(0x4B7FFFFFU));
  EXPECT_EQ(sum_of(singles), 64.0F * singles[0]);
  for (const std::uint64_t most : {1000U, 1'000'000U}) {
    for (std::uint64_t exponent = 1000; exponent < 1100; ++exponent) {
      const double one = std::bit_cast<double>((exponent << 52) | 0xFFFFFFFFFFFFFU);
      const BinnedKernels kernels = binned_reference(DType::kFloat64, RedOp::kSum, most);
      binned::WideSum single{};
      kernels.bin(&single, &one, 1);
      binned::WideSum total = single;
      for (std::uint64_t i = 1; i < 1000; ++i) {
        const void* const both[] = {&total, &single};
        kernels.add(&total, both, 2, 1, 1);
      }
      double mean = 0;
      kernels.unbin(&mean, &total, 1, 1000);
      ASSERT_NEAR(mean / one, 1.0, 0x1p-40);
      if (most == 1000) {
        ASSERT_NEAR(mean / one, 1.0, 0x1p-50);
      }
    }
  }
}

// Every kernel of a target against the reference: numbers to sums, sums of several, sums to
// numbers with a few divisors.
template <class Word>
void expect_alike(const std::string& name, DType dtype, const BinnedKernels& kernels,
                  const std::vector<std::vector<Word>>& operands) {
  const BinnedKernels reference = binned_reference(dtype, RedOp::kSum, operands.size());
  const std::size_t count = operands[0].size();
  std::vector<std::vector<std::uint64_t>> got(operands.size(), std::vector<std::uint64_t>(count));
  std::vector<std::vector<std::uint64_t>> wanted = got;
  std::vector<const void*> sources;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    kernels.bin(got[k].data(), operands[k].data(), count);
    reference.bin(wanted[k].data(), operands[k].data(), count);
    ASSERT_EQ(got[k], wanted[k]) << name << " " << dtype_name(dtype) << " bin";
    sources.push_back(got[k].data());
  }
  std::vector<std::uint64_t> sum(count);
  reference.add(sum.data(), sources.data(), static_cast<int>(sources.size()), count, 1);
  kernels.add(got[0].data(), sources.data(), static_cast<int>(sources.size()), count, 1);
  ASSERT_EQ(got[0], sum) << name << " " << dtype_name(dtype) << " add";
  for (const std::int32_t divisor : {1, 3, 24}) {
    std::vector<Word> result(count);
    std::vector<Word> expected(count);
    kernels.unbin(result.data(), sum.data(), count, divisor);
    reference.unbin(expected.data(), sum.data(), count, divisor);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(result[i], expected[i])
          << name << " " << dtype_name(dtype) << ", element " << i << " of " << count << " over "
          << divisor << ", sum 0x" << std::hex << sum[i];
    }
  }
}

TEST(Binned, EveryTargetGivesTheBitsOfTheReference) {
  for (const auto& [name, table] : targets()) {
    std::mt19937_64 random(kSeed);
    const BinnedKernels& single = table.narrow[static_cast<std::size_t>(DType::kFloat32)];
    for (int round = 0; round < 400; ++round) {
      std::vector<std::vector<std::uint32_t>> operands(1 + random() % 6);
      for (auto& one : operands) {
        one = random_words<std::uint32_t>(1000, random, round / 3);
        one.resize(round % 2 == 0 ? 1000 : 1 + static_cast<std::size_t>(round % 40));
      }
      expect_alike(name, DType::kFloat32, single, operands);
    }
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      const BinnedKernels& small = table.narrow[static_cast<std::size_t>(dtype)];
      std::vector<std::uint16_t> all(0x10000);
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i] = static_cast<std::uint16_t>(i);
      }
      expect_alike<std::uint16_t>(name, dtype, small, {all});
      for (int round = 0; round < 5; ++round) {
        std::vector<std::vector<std::uint16_t>> operands{all};
        for (int k = 0; k <= round % 5; ++k) {
          operands.push_back(random_words<std::uint16_t>(all.size(), random, round + k));
        }
        expect_alike(name, dtype, small, operands);
      }
    }
  }
}

// A 16-bit result is the exact sum, rounded once: where a float32 in between would round twice.
TEST(Binned, SixteenBitResultsAreRoundedOnce) {
  std::mt19937_64 random(kSeed);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (int round = 0; round < 100'000; ++round) {
      std::uint16_t words[3];
      const auto near = static_cast<std::uint16_t>(0x3800 + random() % 0x0800);
      words[0] = near;
      words[1] = static_cast<std::uint16_t>(near - (random() % 0x600));
      words[2] = static_cast<std::uint16_t>((near - random() % 0x800) | (random() & 0x8000));
      const BinnedKernels kernels = binned_reference(dtype, RedOp::kSum, 3);
      const void* const sources[] = {&words[0], &words[1], &words[2]};
      std::uint64_t sum = 0;
      bin_operands(kernels, dtype, {.sources = sources, .source_count = 3}, &sum, 1);
      std::uint16_t got = 0;
      kernels.unbin(&got, &sum, 1, 1);
      const auto widened = [&](std::uint16_t word) {
        return dtype == DType::kFloat16 ? float_from_half(word) : float_from_bfloat16(word);
      };
      const double exact = static_cast<double>(widened(words[0])) +
                           static_cast<double>(widened(words[1])) +
                           static_cast<double>(widened(words[2]));
      const double error = std::fabs(static_cast<double>(widened(got)) - exact);
      for (const int step : {-1, 1}) {
        const double other = widened(static_cast<std::uint16_t>(got + step));
        ASSERT_LE(error, std::fabs(other - exact));
      }
    }
  }
}

#if defined(__SSE2__)
TEST(Binned, FlushToZeroChangesNothing) {
  constexpr unsigned kFlushAndDenormalsAreZero = 0x8040;
  std::mt19937_64 random(kSeed);
  const std::vector<std::uint32_t> words = random_words<std::uint32_t>(4096, random, 2);
  const BinnedKernels kernels = binned_kernels(DType::kFloat32, RedOp::kAvg, 3);
  const auto mean = [&] {
    std::vector<std::uint64_t> sums(words.size());
    std::vector<std::uint32_t> result(words.size());
    kernels.bin(sums.data(), words.data(), words.size());
    kernels.unbin(result.data(), sums.data(), words.size(), 3);
    return result;
  };
  const std::vector<std::uint32_t> expected = mean();
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushAndDenormalsAreZero);
  const std::vector<std::uint32_t> flushed = mean();
  _mm_setcsr(before);
  EXPECT_EQ(flushed, expected);
}
#endif

TEST(Binned, MeansOfNarrowIntegersAreTakenIn64Bits) {
  const std::int8_t values[] = {127, 127, -3, 127};
  const void* sources[4];
  for (int k = 0; k < 4; ++k) {
    sources[k] = &values[k];
  }
  const BinnedKernels kernels = binned_kernels(DType::kInt8, RedOp::kAvg, 4);
  std::int64_t sum = 0;
  bin_operands(kernels, DType::kInt8, {.sources = sources, .source_count = 4}, &sum, 1);
  std::int8_t mean = 0;
  kernels.unbin(&mean, &sum, 1, 4);
  EXPECT_EQ(sum, 378);
  EXPECT_EQ(mean, 94);
}

TEST(Binned, WhatHasNoBinnedSumIsSaid) {
  EXPECT_NE(why_not_binned(DType::kFloat32, RedOp::kProd, 2), "");
  EXPECT_NE(why_not_binned(DType::kFloat32, RedOp::kSum, 1'000'001), "");
  EXPECT_EQ(why_not_binned(DType::kFloat32, RedOp::kSum, 1'000'000), "");
  EXPECT_EQ(why_not_binned(DType::kInt32, RedOp::kProd, 5'000'000), "");
  EXPECT_FALSE(order_matters(DType::kInt32, RedOp::kProd));
  EXPECT_FALSE(order_matters(DType::kFloat32, RedOp::kMax));
  EXPECT_TRUE(order_matters(DType::kComplex64, RedOp::kPremulSum));
}

// Several operands of a rank: each is multiplied and rounded first, in blocks, at any count.
TEST(Binned, OperandsOfOneRankAreCombined) {
  std::mt19937_64 random(kSeed);
  constexpr std::size_t kCount = 1500;
  std::vector<std::vector<float>> data(5, std::vector<float>(kCount));
  std::vector<const void*> sources;
  for (auto& one : data) {
    for (float& value : one) {
      value = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
    }
    sources.push_back(one.data());
  }
  const double factor = 0.5;
  const BinnedKernels kernels = binned_kernels(DType::kFloat32, RedOp::kPremulSum, 5);
  std::vector<std::uint64_t> sums(kCount);
  std::vector<float> result(kCount);
  const Operands operands{.sources = sources.data(), .source_count = 5, .factor = &factor};
  bin_operands(kernels, DType::kFloat32, operands, sums.data(), kCount);
  kernels.unbin(result.data(), sums.data(), kCount, 1);
  std::vector<float> combined = data[2];
  sources[2] = combined.data();
  combine_operands(DType::kFloat32, RedOp::kSum, operands, combined.data(), kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    float sum = 0;
    for (const auto& one : data) {
      sum += one[i] * 0.5F;
    }
    ASSERT_EQ(result[i], sum);
    ASSERT_EQ(combined[i], sum);
  }
}

}  // namespace
}  // namespace isthmus
