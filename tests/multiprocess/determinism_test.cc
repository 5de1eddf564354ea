// Goal: with ISTHMUS_DETERMINISTIC the bits of a sum depend on its operands only. Method: 24 fixed
// operands of two types, specials among them, spread over 2 to 8 ranks in shuffled order, on one
// node, on two, and on a node each, in messages of five lengths, against the scalar reference that
// adds them one by one; then the other operations, means and types, in place and asynchronous, and
// what is refused. The environment's DETERMINISM_SHUFFLES makes it longer (tools/run_long.sh).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/env.h"
#include "kernels/binned.h"
#include "kernels/float16.h"
#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::Ranks;

constexpr unsigned kSeed = 24;
constexpr std::size_t kOperands = 24;
constexpr std::size_t kCounts[] = {1, 13, 3000, 70'001, 300'003};
constexpr std::size_t kCountMax = 300'003;

// 24 operands and the sum of each of their elements, as the reference has it.
struct Data {
  DType dtype = DType::kFloat32;
  std::size_t element = 4;
  std::vector<std::vector<std::byte>> operands;
  std::vector<std::byte> sum;
};

float special(std::mt19937_64& random) {
  constexpr float kSpecials[] = {0.0F,
                                 -0.0F,
                                 std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<float>::quiet_NaN(),
                                 1e-40F,
                                 -3e-42F,
                                 3e38F};
  return kSpecials[random() % std::size(kSpecials)];
}

Data make_data(DType dtype) {
  std::mt19937_64 random(kSeed);
  std::normal_distribution<float> normal;
  Data data{.dtype = dtype, .element = dtype_bytes(dtype), .operands = {}, .sum = {}};
  std::vector<const void*> sources;
  for (std::size_t k = 0; k < kOperands; ++k) {
    std::vector<std::byte>& one = data.operands.emplace_back(kCountMax * data.element);
    for (std::size_t i = 0; i < kCountMax; ++i) {
      const float value = random() % 100 == 0
                              ? special(random)
                              : normal(random) * std::pow(10.0F, static_cast<float>(i % 4));
      const std::uint16_t half = bfloat16_from_float(value);
      std::memcpy(&one[i * data.element],
                  dtype == DType::kFloat32 ? static_cast<const void*>(&value) : &half,
                  data.element);
    }
    sources.push_back(one.data());
  }
  data.sum.resize(kCountMax * data.element);
  const BinnedKernels reference = binned_reference(dtype, RedOp::kSum, kOperands);
  reduce_operands(&reference, dtype, RedOp::kSum,
                  {.sources = sources.data(), .source_count = sources.size()}, data.sum.data(),
                  kCountMax);
  return data;
}

// The kernels are not optimised there: half the shuffles take as long as 30 elsewhere.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kShuffles = 1;
constexpr int kRanksMost = 3;
#else
constexpr int kShuffles = 2;
constexpr int kRanksMost = 8;
#endif

int shuffles() {
  const std::string asked = launcher_variable("DETERMINISM_SHUFFLES");
  return asked.empty() ? kShuffles : std::atoi(asked.c_str());
}

struct Layout {
  int ranks;
  const char* name;
  std::vector<std::string> nodes;
};

std::vector<Layout> layouts() {
  std::vector<Layout> out;
  for (const int ranks : {2, 3, 4, 6, 8}) {
    if (ranks > kRanksMost) {
      break;
    }
    Layout one{ranks, "OneNode", {}};
    Layout two{ranks, "TwoNodes", {}};
    Layout each{ranks, "NodeEach", {}};
    for (int rank = 0; rank < ranks; ++rank) {
      two.nodes.emplace_back(rank < (ranks + 1) / 2 ? "a" : "b");
      each.nodes.push_back(std::to_string(rank));
    }
    out.insert(out.end(), {one, two, each});
  }
  return out;
}

class Determinism : public ::testing::TestWithParam<Layout> {
 protected:
  static void expect_all(const Layout& layout, const Ranks::Body& body) {
    Ranks::Options options;
    options.size = layout.ranks;
    options.node_ids = layout.nodes;
    options.watchdog_s = 100 + static_cast<unsigned>(shuffles()) * 10;
    options.variables = {{"ISTHMUS_DETERMINISTIC", "1"}};
    Ranks ranks(options, body);
    for (const int code : ranks.wait_all()) {
      EXPECT_EQ(code, 0);
    }
  }
};

int sum_shuffled(World& world, const Data& data, std::mt19937_64& random) {
  Communicator& group = world.communicator();
  std::vector<std::size_t> order(kOperands);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  const std::size_t own = kOperands / static_cast<std::size_t>(group.size());
  std::vector<const void*> inputs;
  for (std::size_t k = 0; k < own; ++k) {
    const std::size_t at = static_cast<std::size_t>(group.rank()) * own + k;
    inputs.push_back(data.operands[order[at]].data());
  }
  for (const std::size_t count : kCounts) {
    std::vector<std::byte> out(count * data.element);
    REQUIRE_OK(group.all_reduce_contributions(inputs, out.data(), count, data.dtype, RedOp::kSum));
    REQUIRE_RANK(std::memcmp(out.data(), data.sum.data(), out.size()) == 0);
  }
  return 0;
}

TEST_P(Determinism, TheSameOperandsGiveTheSameBits) {
  static const Data single = make_data(DType::kFloat32);
  static const Data small = make_data(DType::kBFloat16);
  expect_all(GetParam(), [](World& world) {
    std::mt19937_64 random(kSeed);
    for (int shuffle = 0; shuffle < shuffles(); ++shuffle) {
      for (const Data* data : {&single, &small}) {
        const int code = sum_shuffled(world, *data, random);
        if (code != 0) {
          std::fprintf(stderr, "seed %u, shuffle %d, %s\n", kSeed, shuffle,
                       std::string(dtype_name(data->dtype)).c_str());
          return code;
        }
      }
    }
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Determinism, ::testing::ValuesIn(layouts()),
                         [](const auto& layout) {
                           return std::to_string(layout.param.ranks) + layout.param.name;
                         });

// Operand of a rank, for a whole reduce_scatter of `count` elements to each.
std::vector<float> operand(int rank, std::size_t count) {
  std::mt19937_64 random(kSeed + static_cast<unsigned>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) {
    value = normal(random) * std::pow(10.0F, static_cast<float>(random() % 4));
  }
  return out;
}

template <class T>
std::vector<T> expected(DType dtype, RedOp op, const std::vector<std::vector<T>>& operands) {
  const BinnedKernels reference = binned_reference(dtype, op, operands.size());
  std::vector<const void*> sources;
  for (const std::vector<T>& one : operands) {
    sources.push_back(one.data());
  }
  std::vector<T> out(operands[0].size());
  reduce_operands(&reference, dtype, op,
                  {.sources = sources.data(), .source_count = sources.size()}, out.data(),
                  operands[0].size() * sizeof(T) / dtype_bytes(dtype));
  return out;
}

const std::vector<Layout> kFour = {{4, "OneNode", {}},
                                   {4, "TwoNodes", {"a", "a", "a", "b"}},
                                   {4, "NodeEach", {"a", "b", "c", "d"}}};

class DeterministicCalls : public Determinism {};

INSTANTIATE_TEST_SUITE_P(Layouts, DeterministicCalls, ::testing::ValuesIn(kFour),
                         [](const auto& layout) { return std::string(layout.param.name); });

TEST_P(DeterministicCalls, ScatteredAndRootedSumsAreTheSame) {
  expect_all(GetParam(), [](World& world) {
    Communicator& group = world.communicator();
    const auto rank = static_cast<std::size_t>(group.rank());
    for (const std::size_t count : {std::size_t{3}, std::size_t{2000}, std::size_t{50'001}}) {
      std::vector<std::vector<float>> all;
      for (int peer = 0; peer < 4; ++peer) {
        all.push_back(operand(peer, 4 * count));
      }
      const std::vector<float> sum = expected(DType::kFloat32, RedOp::kAvg, all);
      const float* const own = sum.data() + rank * count;
      std::vector<float> out(count);
      REQUIRE_OK(
          group.reduce_scatter(all[rank].data(), out.data(), count, DType::kFloat32, RedOp::kAvg));
      REQUIRE_RANK(std::memcmp(out.data(), own, 4 * count) == 0);
      const std::vector<std::size_t> counts = {count, 2 * count, 0, count};
      const std::size_t first = rank == 0 ? 0 : rank == 1 ? count : 3 * count;
      std::vector<float> uneven(counts[rank] + 1, -1.0F);
      REQUIRE_OK(group.run({.op = OpKind::kReduceScatter,
                            .dtype = DType::kFloat32,
                            .red_op = RedOp::kAvg,
                            .input = all[rank].data(),
                            .output = uneven.data(),
                            .counts = counts}));
      REQUIRE_RANK(std::memcmp(uneven.data(), sum.data() + first, 4 * counts[rank]) == 0);
      REQUIRE_RANK(uneven[counts[rank]] == -1.0F);
      for (int root = 0; root < 4; ++root) {
        std::vector<float> data = all[rank];
        REQUIRE_OK(group.reduce(data.data(), group.rank() == root ? data.data() : nullptr,
                                4 * count, DType::kFloat32, RedOp::kAvg, root));
        REQUIRE_RANK(data == (group.rank() == root ? sum : all[rank]));
      }
      // In place, as a work.
      std::vector<float> in_place = all[rank];
      Result<WorkRef> work = group.start({.op = OpKind::kAllReduce,
                                          .dtype = DType::kFloat32,
                                          .red_op = RedOp::kAvg,
                                          .input = in_place.data(),
                                          .output = in_place.data(),
                                          .count = 4 * count});
      REQUIRE_RANK(work.ok());
      REQUIRE_OK((*work)->wait(Deadline()));
      REQUIRE_RANK(in_place == sum);
    }
    return 0;
  });
}

TEST_P(DeterministicCalls, OtherTypesAndReductions) {
  expect_all(GetParam(), [](World& world) {
    Communicator& group = world.communicator();
    const auto rank = static_cast<std::size_t>(group.rank());
    constexpr std::size_t kCount = 5000;
    std::vector<std::vector<float>> singles;
    std::vector<std::vector<double>> doubles;
    for (int peer = 0; peer < 4; ++peer) {
      singles.push_back(operand(peer, kCount));
      doubles.emplace_back(singles.back().begin(), singles.back().end());
    }
    std::vector<float> out(kCount);
    REQUIRE_OK(group.all_reduce(singles[rank].data(), out.data(), kCount / 2, DType::kComplex64,
                                RedOp::kSum));
    REQUIRE_RANK(out == expected(DType::kFloat32, RedOp::kSum, singles));
    std::vector<double> wide(kCount);
    REQUIRE_OK(
        group.all_reduce(doubles[rank].data(), wide.data(), kCount, DType::kFloat64, RedOp::kSum));
    REQUIRE_RANK(wide == expected(DType::kFloat64, RedOp::kSum, doubles));
    // 4 x 20 operands of float32 travel as wide sums.
    const std::vector<const void*> twenty(20, singles[rank].data());
    std::vector<std::vector<float>> eighty;
    for (int k = 0; k < 80; ++k) {
      eighty.push_back(singles[static_cast<std::size_t>(k % 4)]);
    }
    REQUIRE_OK(
        group.all_reduce_contributions(twenty, out.data(), kCount, DType::kFloat32, RedOp::kAvg));
    REQUIRE_RANK(out == expected(DType::kFloat32, RedOp::kAvg, eighty));
    REQUIRE_OK(group.run({.op = OpKind::kAllReduce,
                          .dtype = DType::kFloat32,
                          .red_op = RedOp::kPremulSum,
                          .input = singles[rank].data(),
                          .output = out.data(),
                          .count = kCount,
                          .factor = 3.0}));
    for (std::vector<float>& one : singles) {
      for (float& value : one) {
        value *= 3.0F;
      }
    }
    REQUIRE_RANK(out == expected(DType::kFloat32, RedOp::kSum, singles));
    const std::int8_t large = group.rank() == 3 ? -128 : 127;
    std::int8_t mean = 0;
    REQUIRE_OK(group.all_reduce(&large, &mean, 1, DType::kInt8, RedOp::kAvg));
    REQUIRE_RANK(mean == (3 * 127 - 128) / 4);
    const float zero = group.rank() == 2 ? 0.0F : -0.0F;
    float extreme = 1.0F;
    REQUIRE_OK(group.all_reduce(&zero, &extreme, 1, DType::kFloat32, RedOp::kMax));
    REQUIRE_RANK(extreme == 0.0F && !std::signbit(extreme));
    REQUIRE_OK(group.all_reduce(&zero, &extreme, 1, DType::kFloat32, RedOp::kMin));
    REQUIRE_RANK(extreme == 0.0F && std::signbit(extreme));
    const float nan = group.rank() == 1 ? -std::nanf("5") : 1.0F;
    std::uint32_t bits = 0;
    REQUIRE_OK(group.all_reduce(&nan, &bits, 1, DType::kFloat32, RedOp::kMin));
    REQUIRE_RANK(bits == 0x7FC00000U);
    return 0;
  });
}

TEST_P(DeterministicCalls, RefusalsLeaveTheGroupUsable) {
  expect_all(GetParam(), [](World& world) {
    Communicator& group = world.communicator();
    float value = 1.0F;
    float other = 2.0F;
    float out = 0.0F;
    const Status product = group.all_reduce(&value, &out, 1, DType::kFloat32, RedOp::kProd);
    REQUIRE_RANK(!product.ok() && product.error().code == Code::kInvalidArgument);
    REQUIRE_RANK(product.error().message.find("depends on their order") != std::string::npos);
    // Ranks that bring different numbers of operands.
    std::vector<const void*> inputs = {&value, &other};
    if (group.rank() == 1) {
      inputs.push_back(&value);
    }
    const Status uneven =
        group.all_reduce_contributions(inputs, &out, 1, DType::kFloat32, RedOp::kSum);
    REQUIRE_RANK(!uneven.ok() && uneven.error().code == Code::kMismatch);
    inputs.resize(2);
    REQUIRE_OK(group.all_reduce_contributions(inputs, &out, 1, DType::kFloat32, RedOp::kSum));
    REQUIRE_RANK(out == 12.0F);
    inputs[1] = nullptr;
    REQUIRE_RANK(
        !group.all_reduce_contributions(inputs, &out, 1, DType::kFloat32, RedOp::kSum).ok());
    REQUIRE_OK(group.barrier());
    return 0;
  });
}

// A group of one gives the bits that its operands give on several ranks.
TEST(DeterministicAlone, OneRankAddsTheSame) {
  Ranks::Options options;
  options.size = 1;
  options.variables = {{"ISTHMUS_DETERMINISTIC", "1"}};
  Ranks ranks(options, [](World& world) {
    constexpr std::size_t kCount = 1700;
    std::vector<std::vector<float>> all;
    std::vector<const void*> inputs;
    for (int peer = 0; peer < 24; ++peer) {
      all.push_back(operand(peer, kCount));
      inputs.push_back(all.back().data());
    }
    const std::vector<float> mean = expected(DType::kFloat32, RedOp::kAvg, all);
    Communicator& group = world.communicator();
    REQUIRE_OK(group.all_reduce_contributions(inputs, all[5].data(), kCount, DType::kFloat32,
                                              RedOp::kAvg));
    REQUIRE_RANK(all[5] == mean);
    return 0;
  });
  EXPECT_EQ(ranks.wait(0), 0);
}

// Without the mode several operands are summed too, in their order on each rank.
TEST(SeveralOperands, AreCombinedWithoutTheModeToo) {
  for (const bool nodes : {false, true}) {
    Ranks::Options options;
    options.size = 2;
    options.node_ids = nodes ? std::vector<std::string>{"a", "b"} : std::vector<std::string>{};
    Ranks ranks(options, [](World& world) {
      Communicator& group = world.communicator();
      for (const std::size_t count : {std::size_t{1}, std::size_t{5000}, std::size_t{100'000}}) {
        std::vector<float> a(count, 1.0F + static_cast<float>(group.rank()));
        const std::vector<float> b(count, 10.0F);
        const std::vector<float> c(count, 0.5F);
        const void* const inputs[] = {a.data(), b.data(), c.data()};
        REQUIRE_OK(
            group.all_reduce_contributions(inputs, a.data(), count, DType::kFloat32, RedOp::kAvg));
        REQUIRE_RANK(a == std::vector<float>(count, 4.0F));
        const void* const one[] = {b.data()};
        REQUIRE_OK(
            group.all_reduce_contributions(one, a.data(), count, DType::kFloat32, RedOp::kSum));
        REQUIRE_RANK(a == std::vector<float>(count, 20.0F));
        std::vector<std::int32_t> many(count, group.rank() + 1);
        const std::vector<const void*> same(5, many.data());
        REQUIRE_OK(
            group.all_reduce_contributions(same, many.data(), count, DType::kInt32, RedOp::kSum));
        REQUIRE_RANK(many == std::vector<std::int32_t>(count, 15));
        std::vector<std::uint16_t> halves(count, 0x7800);  // 32768
        const std::vector<const void*> large(3, halves.data());
        REQUIRE_OK(group.all_reduce_contributions(large, halves.data(), count, DType::kFloat16,
                                                  RedOp::kMax));
        REQUIRE_RANK(halves == std::vector<std::uint16_t>(count, 0x7800));
      }
      return 0;
    });
    EXPECT_EQ(ranks.wait_all(), (std::vector<int>{0, 0}));
  }
}

TEST(DeterministicRefusal, RanksThatDoNotAgreeOnTheModeAreTold) {
  Ranks::Options options;
  options.size = 2;
  options.before = [](int rank) {
    ::setenv("ISTHMUS_DETERMINISTIC", rank == 0 ? "1" : "0", 1);
    ::setenv("ISTHMUS_CONNECT_TIMEOUT_S", "20", 1);
  };
  options.told = [](int /*rank*/, const Error& error) {
    if (error.message.find("ISTHMUS_DETERMINISTIC") == std::string::npos) {
      std::fprintf(stderr, "%s\n", error.message.c_str());
      ::_exit(3);
    }
  };
  Ranks ranks(options, [](World& /*world*/) { return 0; });
  EXPECT_EQ(ranks.wait_all(), (std::vector<int>{Ranks::kNoWorld, Ranks::kNoWorld}));
}

}  // namespace
}  // namespace isthmus
