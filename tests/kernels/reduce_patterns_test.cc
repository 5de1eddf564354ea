// Goal: float16 and bfloat16 reductions are right for every bit pattern, on every SIMD target.
// Method: all 65,536 patterns paired with partners that include NaN, infinities, denormals and
// zeros of both signs, and in triples. The reference is compared with a computation of its own here
// (pairs), the kernels with the reference, bit for bit.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/float16.h"
#include "kernels/reduce.h"
#include "tests/kernels/targets.h"

namespace isthmus {
namespace {

constexpr std::size_t kPatterns = 0x10000;
constexpr RedOp kOps[] = {RedOp::kSum, RedOp::kAvg, RedOp::kMin, RedOp::kMax, RedOp::kProd};
using Words = std::vector<std::uint16_t>;

Words all_patterns() {
  Words words(kPatterns);
  for (std::size_t i = 0; i < kPatterns; ++i) {
    words[i] = static_cast<std::uint16_t>(i);
  }
  return words;
}

std::vector<std::uint16_t> partners(DType dtype) {
  if (dtype == DType::kFloat16) {
    return {0x0000, 0x8000, 0x3C00, 0xBC00, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF,
            0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 0x6800, 0x1234, 0x9ABC};
  }
  return {0x0000, 0x8000, 0x3F80, 0xBF80, 0x0001, 0x8001, 0x007F, 0x0080, 0x7F7F,
          0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x4380, 0x1234, 0x9ABC};
}

float widen(DType dtype, std::uint16_t bits) {
  return dtype == DType::kFloat16 ? float_from_half(bits) : float_from_bfloat16(bits);
}

std::uint16_t narrow(DType dtype, float value) {
  return dtype == DType::kFloat16 ? half_from_float(value) : bfloat16_from_float(value);
}

// The combination of two, from the definitions in reduce.h.
std::uint16_t expected(DType dtype, RedOp op, std::uint16_t a, std::uint16_t b, int divisor) {
  const float x = widen(dtype, a);
  const float y = widen(dtype, b);
  const bool ordered = !std::isnan(x) && !std::isnan(y);
  switch (op) {
    case RedOp::kSum:
      return narrow(dtype, x + y);
    case RedOp::kAvg:
      return narrow(dtype, (x + y) / static_cast<float>(divisor));
    case RedOp::kProd:
      return narrow(dtype, x * y);
    case RedOp::kMin:
      if (ordered) {
        return x < y || (x == y && std::signbit(x)) ? a : b;
      }
      break;
    case RedOp::kMax:
      if (ordered) {
        return x > y || (x == y && !std::signbit(x)) ? a : b;
      }
      break;
    default:
      break;
  }
  return narrow(dtype, NAN);
}

class Patterns : public testing::TestWithParam<DType> {};

TEST_P(Patterns, ReferenceFollowsTheDefinition) {
  const DType dtype = GetParam();
  const Words left = all_patterns();
  Words got(kPatterns);
  for (const std::uint16_t partner : partners(dtype)) {
    const Words right(kPatterns, partner);
    const void* sources[] = {left.data(), right.data()};
    for (const RedOp op : kOps) {
      reduce_reference(dtype, op, got.data(), sources, 2, kPatterns, 3);
      for (std::size_t i = 0; i < kPatterns; ++i) {
        ASSERT_EQ(got[i], expected(dtype, op, left[i], partner, 3))
            << red_op_name(op) << " of " << left[i] << " and " << partner;
      }
    }
  }
}

TEST_P(Patterns, KernelsEqualTheReference) {
  const DType dtype = GetParam();
  const std::vector<test::Target> targets = test::runnable_targets();
  const Words left = all_patterns();
  Words want(kPatterns);
  Words got(kPatterns);
  for (const std::uint16_t partner : partners(dtype)) {
    const Words right(kPatterns, partner);
    const void* sources[] = {left.data(), right.data(), left.data() + 1};
    for (const RedOp op : kOps) {
      for (const int source_count : {2, 3}) {
        const std::size_t count = kPatterns - (source_count == 3 ? 1 : 0);
        reduce_reference(dtype, op, want.data(), sources, source_count, count, 2);
        for (const test::Target& target : targets) {
          target.table.at(dtype, op)(got.data(), sources, source_count, count, 2);
          ASSERT_EQ(std::memcmp(got.data(), want.data(), count * sizeof(got[0])), 0)
              << test::label(target, dtype, op) << " partner " << partner;
        }
      }
    }
  }
}

TEST_P(Patterns, AverageOfOneRoundsOnce) {
  const DType dtype = GetParam();
  const std::vector<test::Target> targets = test::runnable_targets();
  const Words all = all_patterns();
  const void* sources[] = {all.data()};
  Words got(kPatterns);
  for (const int divisor : {2, 3, 7, 64, 1000003}) {
    for (const test::Target& target : targets) {
      target.table.at(dtype, RedOp::kAvg)(got.data(), sources, 1, kPatterns, divisor);
      for (std::size_t i = 0; i < kPatterns; ++i) {
        ASSERT_EQ(got[i], narrow(dtype, widen(dtype, all[i]) / static_cast<float>(divisor)))
            << target.name << " " << all[i] << " by " << divisor;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Halves, Patterns, testing::Values(DType::kFloat16, DType::kBFloat16),
                         [](const testing::TestParamInfo<DType>& param) {
                           return std::string(dtype_name(param.param));
                         });

}  // namespace
}  // namespace isthmus
