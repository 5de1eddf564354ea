// Goal: every kernel on every SIMD target has the bits of the scalar reference at every count,
// alignment, number of sources and aliasing, and the rules of reduce.h hold for known values.
// Method: random bits mixed with special values, from a printed seed, between guard bytes.
#include "kernels/reduce.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/float16.h"
#include "tests/kernels/targets.h"

namespace isthmus {
namespace {

constexpr std::uint64_t kSeed = 20262;
constexpr std::size_t kGuard = 80;
constexpr std::uint8_t kGuardByte = 0xA5;
using Bytes = std::vector<std::uint8_t>;

// Bit patterns at which floating-point and integer arithmetic turn peculiar.
std::vector<std::uint64_t> special_bits(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x00000001, 0x807FFFFF, 0x00800000,
              0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001};
    case DType::kFloat64:
      return {0,
              0x8000000000000000,
              0x3FF0000000000000,
              1,
              0x800FFFFFFFFFFFFF,
              0x7FEFFFFFFFFFFFFF,
              0x7FF0000000000000,
              0xFFF0000000000000,
              0x7FF8000000000000,
              0xFFF8000012345678,
              0x7FF0000000000001};
    case DType::kFloat16:
      return {0x0000, 0x8000, 0x3C00, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFD01};
    case DType::kBFloat16:
      return {0x0000, 0x8000, 0x3F80, 0x0001, 0x807F, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0xFF81};
    case DType::kFloat8E4m3fn:
    case DType::kFloat8E5m2:
    case DType::kFloat8E4m3fnuz:
    case DType::kFloat8E5m2fnuz:
      return {0x00, 0x80, 0x38, 0x3C, 0x01, 0x83, 0x7B, 0x7C, 0xFC, 0x7E, 0xFE, 0x7F, 0xFF};
    case DType::kComplex64:  // Both parts.
      return {0,
              0x8000000000000000,
              0x3F8000003F800000,
              0xBF80000000000001,
              0x7F7FFFFFFF7FFFFF,
              0x7F80000000000000,
              0x000000007F800000,
              0xFF8000007F800000,
              0x3F800000FFC12345};
    default:
      return {0,
              1,
              ~std::uint64_t{0},
              0x8000000000000000,
              0x7FFFFFFFFFFFFFFF,
              0x80000000,
              0x7FFFFFFF,
              0x7FFF,
              0x8000,
              0x80};
  }
}

class Filler {
 public:
  Filler() : random_(kSeed) {}

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  // `bytes` of elements, starting `offset` bytes into the result.
  Bytes elements(DType dtype, std::size_t count, std::size_t offset) {
    if (dtype == DType::kComplex128) {
      return elements(DType::kFloat64, 2 * count, offset);
    }
    const std::size_t size = dtype_bytes(dtype);
    const std::vector<std::uint64_t> special = special_bits(dtype);
    Bytes result(offset + count * size);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t bits = random_();
      if (bits % 4 == 0) {
        bits = special[(bits >> 8) % special.size()];
      }
      std::memcpy(result.data() + offset + i * size, &bits, size);
    }
    return result;
  }

 private:
  std::mt19937_64 random_;
};

// One call: kernel and reference on copies of the same data. alias < 0: dst is apart.
void check_call(const test::Target& target, DType dtype, RedOp op, int source_count,
                std::size_t count, int alias, std::int32_t divisor, Filler& filler) {
  const std::size_t bytes = count * dtype_bytes(dtype);
  std::vector<Bytes> data;
  std::vector<const void*> sources;
  std::vector<std::size_t> offsets;
  for (int k = 0; k < source_count; ++k) {
    offsets.push_back(filler.below(2) == 0 ? 0 : filler.below(64));
    data.push_back(filler.elements(dtype, count, offsets.back()));
    data.back().resize(data.back().size() + kGuard, kGuardByte);
    sources.push_back(data.back().data() + offsets.back());
  }
  Bytes want(bytes + 1);
  reduce_reference(dtype, op, want.data(), sources.data(), source_count, count, divisor);
  const std::vector<Bytes> before = data;
  const std::size_t dst_offset = kGuard + filler.below(64);
  Bytes apart(dst_offset + bytes + kGuard, kGuardByte);
  Bytes apart_want = apart;
  std::uint8_t* dst = apart.data() + dst_offset;
  std::memcpy(apart_want.data() + dst_offset, want.data(), bytes);
  if (alias >= 0) {
    dst = data[static_cast<std::size_t>(alias)].data() + offsets[static_cast<std::size_t>(alias)];
  }
  target.table.at(dtype, op)(dst, sources.data(), source_count, count, divisor);
  const std::string where = test::label(target, dtype, op) + " sources " +
                            std::to_string(source_count) + " count " + std::to_string(count) +
                            " alias " + std::to_string(alias) + " divisor " +
                            std::to_string(divisor);
  ASSERT_EQ(std::memcmp(dst, want.data(), bytes), 0) << where;
  if (alias < 0) {
    ASSERT_EQ(apart, apart_want) << where;
  }
  for (int k = 0; k < source_count; ++k) {
    const std::size_t at = static_cast<std::size_t>(k);
    const std::size_t changed = k == alias ? offsets[at] + bytes : 0;
    ASSERT_EQ(std::memcmp(data[at].data() + changed, before[at].data() + changed,
                          before[at].size() - changed),
              0)
        << where << ": source " << k << " was written";
  }
}

class Reduce : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { RecordProperty("seed", std::to_string(kSeed)); }

  const std::vector<test::Target> targets_ = test::runnable_targets();
  const std::vector<RedOp> ops_ = test::ops_of(GetParam());
  Filler filler_;
};

constexpr std::int32_t kDivisors[] = {
    1, 2, 3, 4, 7, 8, 64, 1000003, std::numeric_limits<std::int32_t>::max()};

TEST_P(Reduce, EveryCountUpTo200) {
  SCOPED_TRACE(kSeed);
  for (const test::Target& target : targets_) {
    for (const RedOp op : ops_) {
      for (std::size_t count = 0; count <= 200; ++count) {
        for (const int source_count : {1, 2, 3, 4, 5, 8, 64}) {
          if (source_count > 8 && count % 9 != 7) {
            continue;  // The most sources are slow to fill, above all under sanitizers.
          }
          const std::uint64_t other = static_cast<std::uint64_t>(source_count) + 1;
          const int alias = static_cast<int>(filler_.below(other)) - 1;
          const std::int32_t divisor = kDivisors[filler_.below(std::size(kDivisors))];
          check_call(target, GetParam(), op, source_count, count, alias, divisor, filler_);
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST_P(Reduce, LargeCounts) {
  SCOPED_TRACE(kSeed);
  for (const test::Target& target : targets_) {
    for (const RedOp op : ops_) {
      for (const std::size_t count : std::initializer_list<std::size_t>{256, 1000, 4099, 100003}) {
        for (const int source_count : {1, 2, 3, 4, 5}) {
          check_call(target, GetParam(), op, source_count, count, -1, source_count, filler_);
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST_P(Reduce, EveryAlias) {
  SCOPED_TRACE(kSeed);
  for (const test::Target& target : targets_) {
    for (const RedOp op : ops_) {
      for (const std::size_t count :
           std::initializer_list<std::size_t>{1, 2, 5, 15, 16, 17, 63, 100, 519}) {
        for (const int source_count : {1, 2, 3, 4, 5, 8}) {
          for (int alias = 0; alias < source_count; ++alias) {
            check_call(target, GetParam(), op, source_count, count, alias, 3, filler_);
            if (HasFatalFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

TEST_P(Reduce, EveryDivisor) {
  if (!reducible(GetParam(), RedOp::kAvg)) {
    return;
  }
  SCOPED_TRACE(kSeed);
  for (const test::Target& target : targets_) {
    for (const std::int32_t divisor : kDivisors) {
      for (const int source_count : {1, 2, 3, 8, 64}) {
        check_call(target, GetParam(), RedOp::kAvg, source_count, 777, -1, divisor, filler_);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST_P(Reduce, OneSourceIsACopy) {
  const Bytes source = filler_.elements(GetParam(), 333, 0);
  const void* sources[] = {source.data()};
  for (const test::Target& target : targets_) {
    for (const RedOp op : ops_) {
      Bytes got(source.size());
      target.table.at(GetParam(), op)(got.data(), sources, 1, 333, 1);
      EXPECT_EQ(got, source) << test::label(target, GetParam(), op);
    }
  }
}

TEST_P(Reduce, DefaultKernelIsTheBestTargets) {
  for (const RedOp op : ops_) {
    EXPECT_EQ(reduce_kernel(GetParam(), op), targets_.front().table.at(GetParam(), op));
  }
  EXPECT_EQ(scale_kernel(GetParam()), targets_.front().table.scale_of(GetParam()));
}

// Every vectorised dtype is: no kernel was forgotten.
TEST_P(Reduce, BestTargetIsNotScalar) {
  const bool fnuz = GetParam() == DType::kFloat8E4m3fnuz || GetParam() == DType::kFloat8E5m2fnuz;
  if (targets_.size() == 1 || fnuz) {
    return;  // kernels/reduce_float8.cc says why.
  }
  for (const RedOp op : ops_) {
    EXPECT_NE(reduce_kernel(GetParam(), op), reference_table().at(GetParam(), op))
        << red_op_name(op);
  }
}

TEST_P(Reduce, ScaleEqualsTheReference) {
  const DType dtype = GetParam();
  if (!reducible(dtype, RedOp::kPremulSum)) {
    return;
  }
  SCOPED_TRACE(kSeed);
  for (const test::Target& target : targets_) {
    for (const double factor : {1.0, 0.5, 0.1, -3.0, 0.0, 1e30, std::nan("")}) {
      for (const std::size_t count :
           std::initializer_list<std::size_t>{0, 1, 2, 3, 7, 15, 16, 17, 33, 64, 100, 1021}) {
        const std::size_t bytes = count * dtype_bytes(dtype);
        const Bytes source = filler_.elements(dtype, count, 3);
        Bytes want(bytes + 1);
        scale_reference(dtype, want.data(), source.data() + 3, count, factor);
        Bytes got(bytes + kGuard, kGuardByte);
        target.table.scale_of(dtype)(got.data() + 1, source.data() + 3, count, factor);
        ASSERT_EQ(std::memcmp(got.data() + 1, want.data(), bytes), 0)
            << target.name << " " << dtype_name(dtype) << " " << count << " by " << factor;
        ASSERT_EQ(got[0], kGuardByte);
        ASSERT_EQ(got[bytes + 1], kGuardByte);
        Bytes same = source;
        target.table.scale_of(dtype)(same.data() + 3, same.data() + 3, count, factor);
        ASSERT_EQ(std::memcmp(same.data() + 3, want.data(), bytes), 0) << "in place";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Reduce, testing::ValuesIn(test::reducible_dtypes()),
                         [](const testing::TestParamInfo<DType>& param) {
                           return std::string(dtype_name(param.param));
                         });

// The result of one call on `columns`, one vector per source, through every target.
template <class T>
std::vector<T> reduce_all_targets(DType dtype, RedOp op, const std::vector<std::vector<T>>& columns,
                                  std::int32_t divisor) {
  std::vector<const void*> sources;
  for (const std::vector<T>& column : columns) {
    sources.push_back(column.data());
  }
  const int n = static_cast<int>(columns.size());
  std::vector<T> first(columns[0].size());
  reduce_reference(dtype, op, first.data(), sources.data(), n, first.size(), divisor);
  for (const test::Target& target : test::runnable_targets()) {
    std::vector<T> got(first.size());
    target.table.at(dtype, op)(got.data(), sources.data(), n, got.size(), divisor);
    EXPECT_EQ(std::memcmp(got.data(), first.data(), got.size() * sizeof(T)), 0)
        << test::label(target, dtype, op);
  }
  return first;
}

std::vector<std::uint16_t> halves(const std::vector<float>& values) {
  std::vector<std::uint16_t> result;
  for (const float value : values) {
    result.push_back(half_from_float(value));
  }
  return result;
}

std::vector<std::uint16_t> bfloats(const std::vector<float>& values) {
  std::vector<std::uint16_t> result;
  for (const float value : values) {
    result.push_back(bfloat16_from_float(value));
  }
  return result;
}

TEST(ReduceValues, AverageOfFourRanks) {
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<std::int32_t>> ints;
  std::vector<std::vector<std::uint16_t>> half_columns;
  std::vector<std::vector<std::uint16_t>> bfloat_columns;
  for (int rank = 0; rank < 4; ++rank) {
    floats.push_back(std::vector<float>(5, static_cast<float>(rank + 1)));
    ints.push_back({rank, -rank});
    half_columns.push_back(halves({60000, 60000, 60000}));
    bfloat_columns.push_back(bfloats({static_cast<float>(2 * rank + 1)}));
  }
  EXPECT_EQ(reduce_all_targets(DType::kFloat32, RedOp::kAvg, floats, 4),
            std::vector<float>(5, 2.5F));
  EXPECT_EQ(reduce_all_targets(DType::kInt32, RedOp::kAvg, ints, 4),
            (std::vector<std::int32_t>{1, -1}));
  EXPECT_EQ(reduce_all_targets(DType::kFloat16, RedOp::kAvg, half_columns, 4),
            halves({60000, 60000, 60000}));
  EXPECT_EQ(reduce_all_targets(DType::kBFloat16, RedOp::kAvg, bfloat_columns, 4), bfloats({4}));
}

TEST(ReduceValues, SixteenBitSumsRoundOnce) {
  EXPECT_EQ(reduce_all_targets<std::uint16_t>(
                DType::kFloat16, RedOp::kSum,
                {halves({2048, 2050, 65504, 65504, 0x1p-24F}), halves({1, 1, 8, 16, 0x1p-24F})}, 1),
            halves({2048, 2052, 65504, INFINITY, 0x1p-23F}));
  EXPECT_EQ(reduce_all_targets<std::uint16_t>(DType::kBFloat16, RedOp::kSum,
                                              {bfloats({256, 258}), bfloats({1, 1})}, 1),
            bfloats({256, 260}));
  // Rounded after each of two additions, 256 + 1 + 1 would stay 256.
  EXPECT_EQ(reduce_all_targets<std::uint16_t>(DType::kBFloat16, RedOp::kSum,
                                              {bfloats({256}), bfloats({1}), bfloats({1})}, 1),
            bfloats({258}));
}

TEST(ReduceValues, IntegersWrapAndAveragesDoNot) {
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  const std::vector<std::vector<std::int32_t>> columns(64, std::vector<std::int32_t>(40, kMax));
  EXPECT_EQ(reduce_all_targets(DType::kInt32, RedOp::kAvg, columns, 64), columns[0]);
  EXPECT_EQ(reduce_all_targets(DType::kInt32, RedOp::kSum, columns, 1),
            std::vector<std::int32_t>(40, -64));
  const std::vector<std::vector<std::int32_t>> low(64, std::vector<std::int32_t>(40, kMin));
  EXPECT_EQ(reduce_all_targets(DType::kInt32, RedOp::kAvg, low, 64), low[0]);
  const std::vector<std::vector<std::uint8_t>> bytes(64, std::vector<std::uint8_t>(100, 255));
  EXPECT_EQ(reduce_all_targets(DType::kUint8, RedOp::kAvg, bytes, 64), bytes[0]);
  EXPECT_EQ(reduce_all_targets(DType::kUint8, RedOp::kSum, bytes, 1),
            std::vector<std::uint8_t>(100, 192));
  const std::int64_t big = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(reduce_all_targets<std::int64_t>(DType::kInt64, RedOp::kSum, {{big}, {2}, {0}}, 1)[0],
            9007199254740995);
}

TEST(ReduceValues, NanPropagatesAndZerosAreOrdered) {
  const float nan = std::bit_cast<float>(0xFFC12345U);
  std::vector<std::vector<float>> columns(3, std::vector<float>(40, 1.0F));
  for (std::size_t i = 0; i < 40; ++i) {
    columns[i % 3][i] = nan;
  }
  for (const RedOp op : test::ops_of(DType::kFloat32)) {
    for (const float value : reduce_all_targets(DType::kFloat32, op, columns, 3)) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(value), 0x7FC00000U) << red_op_name(op);
    }
  }
  for (const bool swap : {false, true}) {
    const std::vector<float> minus(40, -0.0F);
    const std::vector<float> plus(40, 0.0F);
    const std::vector<std::vector<float>> zeros = {swap ? plus : minus, swap ? minus : plus};
    EXPECT_TRUE(std::signbit(reduce_all_targets(DType::kFloat32, RedOp::kMin, zeros, 1)[39]));
    EXPECT_FALSE(std::signbit(reduce_all_targets(DType::kFloat32, RedOp::kMax, zeros, 1)[39]));
  }
}

// The table of kernels is the table of docs/dtypes.md.
TEST(ReduceValues, KernelsExistWhereTheTypeIsReducible) {
  for (const test::Target& target : test::runnable_targets()) {
    for (int type = 0; type < kDTypeCount; ++type) {
      const DType dtype = static_cast<DType>(type);
      for (int i = 0; i < kRedOpCount; ++i) {
        const RedOp op = static_cast<RedOp>(i);
        EXPECT_EQ(target.table.at(dtype, op) != nullptr, reducible(dtype, op))
            << test::label(target, dtype, op);
      }
      EXPECT_EQ(target.table.scale_of(dtype) != nullptr, reducible(dtype, RedOp::kPremulSum))
          << target.name << " " << dtype_name(dtype);
    }
  }
}

TEST(ReduceValues, BoolsStayBools) {
  const std::vector<std::uint8_t> a = {0, 0, 1, 1, 2, 4};
  const std::vector<std::uint8_t> b = {0, 1, 0, 1, 1, 0};
  std::vector<std::vector<std::uint8_t>> columns(2);
  for (std::size_t i = 0; i < 120; ++i) {
    columns[0].push_back(a[i % a.size()]);
    columns[1].push_back(b[i % b.size()]);
  }
  for (const RedOp op : test::ops_of(DType::kBool)) {
    const std::vector<std::uint8_t> got = reduce_all_targets(DType::kBool, op, columns, 1);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool x = columns[0][i] != 0;
      const bool y = columns[1][i] != 0;
      const bool any = op == RedOp::kSum || op == RedOp::kMax || op == RedOp::kBor;
      const bool want = op == RedOp::kBxor ? x != y : any ? x || y : x && y;
      ASSERT_EQ(got[i], want ? 1 : 0) << red_op_name(op) << " element " << i;
    }
  }
}

TEST(ReduceValues, ComplexProductsAndSums) {
  const std::vector<float> a(66, 1.0F);  // 1 + 1i
  std::vector<float> b;
  for (int i = 0; i < 33; ++i) {
    b.insert(b.end(), {static_cast<float>(i), 2.0F});
  }
  const std::vector<const void*> sources = {a.data(), b.data()};
  for (const test::Target& target : test::runnable_targets()) {
    std::vector<float> got(66);
    target.table.at(DType::kComplex64, RedOp::kProd)(got.data(), sources.data(), 2, 33, 1);
    for (std::size_t i = 0; i < 33; ++i) {
      ASSERT_EQ(got[2 * i], static_cast<float>(i) - 2.0F) << target.name;
      ASSERT_EQ(got[2 * i + 1], static_cast<float>(i) + 2.0F) << target.name;
    }
    target.table.at(DType::kComplex64, RedOp::kAvg)(got.data(), sources.data(), 2, 33, 2);
    for (std::size_t i = 0; i < 33; ++i) {
      ASSERT_EQ(got[2 * i], (1.0F + static_cast<float>(i)) / 2.0F) << target.name;
      ASSERT_EQ(got[2 * i + 1], 1.5F) << target.name;
    }
  }
}

TEST(ReduceDeathTest, BrokenCallsAbort) {
  float value = 1;
  std::vector<const void*> sources(kReduceSourcesMax + 1, &value);
  for (const test::Target& target : test::runnable_targets()) {
    const ReduceFn average = target.table.at(DType::kFloat32, RedOp::kAvg);
    EXPECT_DEATH(average(&value, sources.data(), 0, 1, 1), "kReduceSourcesMax");
    EXPECT_DEATH(average(&value, sources.data(), kReduceSourcesMax + 1, 1, 1), "kReduceSourcesMax");
    EXPECT_DEATH(average(&value, sources.data(), 2, 1, 0), "at least 1");
  }
}

}  // namespace
}  // namespace isthmus
