// Goal: every type goes through every collective that reduces, with every reduction it has, on one
// node and on two; PREMUL_SUM takes each rank's own factor, leaves inputs alone and does not pair
// with SUM; what is not supported is refused with its reason. Method: worlds over a MemoryStore,
// one thread a rank, small whole numbers that every type holds.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/world.h"
#include "kernels/reduce.h"
#include "transport/memory_store.h"

namespace isthmus {
namespace {

using Body = std::function<void(World& world)>;
using Bytes = std::vector<std::uint8_t>;

// Runs `body` on each rank; `nodes` is one letter a rank.
void on_ranks(const std::string& nodes, const Body& body) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    threads.emplace_back([&, rank] {
      WorldOptions options;
      options.rank = static_cast<int>(rank);
      options.size = static_cast<int>(nodes.size());
      options.timeout_ms = 60'000;
      options.node_id = std::string(1, nodes[rank]);
      Result<std::unique_ptr<World>> world = World::create(options, store);
      ASSERT_TRUE(world.ok()) << world.error().message;
      body(**world);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// The pattern of 1, of a complex number's real part.
std::uint64_t bits_of_one(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kComplex64:
      return 0x3F800000;
    case DType::kFloat64:
    case DType::kComplex128:
      return 0x3FF0000000000000;
    case DType::kFloat16:
      return 0x3C00;
    case DType::kBFloat16:
      return 0x3F80;
    case DType::kFloat8E4m3fn:
      return 0x38;
    case DType::kFloat8E5m2:
      return 0x3C;
    case DType::kFloat8E4m3fnuz:
    case DType::kFloat8E5m2fnuz:
      return 0x40;
    default:
      return 1;
  }
}

// What a rank holds.
Bytes ones_and_zeros(DType dtype, std::size_t count, int rank) {
  const std::size_t size = dtype_bytes(dtype);
  const std::uint64_t bits = bits_of_one(dtype);
  Bytes one(size, 0);
  std::memcpy(one.data(), &bits, std::min(size, sizeof bits));
  Bytes result(count * size, 0);
  for (std::size_t i = 0; i < count; ++i) {
    if ((i + static_cast<std::size_t>(rank)) % 3 != 0) {
      std::memcpy(result.data() + i * size, one.data(), size);
    }
  }
  return result;
}

// All ranks' operands through one call of the scalar reference: sums of so few ones are exact, so
// that levels do not show.
Bytes expected(DType dtype, RedOp op, std::size_t count, int ranks) {
  std::vector<Bytes> operands;
  std::vector<const void*> sources;
  for (int rank = 0; rank < ranks; ++rank) {
    operands.push_back(ones_and_zeros(dtype, count, rank));
    if (op == RedOp::kPremulSum) {
      scale_reference(dtype, operands.back().data(), operands.back().data(), count, rank + 1);
    }
  }
  for (const Bytes& operand : operands) {
    sources.push_back(operand.data());
  }
  Bytes result(count * dtype_bytes(dtype));
  reduce_reference(dtype, op, result.data(), sources.data(), ranks, count, ranks);
  return result;
}

class DTypes : public ::testing::TestWithParam<std::string> {};

void check_pair(World& world, DType dtype, RedOp op, std::size_t count) {
  Communicator& group = world.communicator();
  const std::string what = std::string(dtype_name(dtype)) + " " + std::string(red_op_name(op));
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t size = dtype_bytes(dtype);
  const Bytes want = expected(dtype, op, count * ranks, world.size());
  const Bytes input = ones_and_zeros(dtype, count * ranks, world.rank());
  Bytes data = input;
  Call call{.op = OpKind::kAllReduce,
            .dtype = dtype,
            .red_op = op,
            .input = data.data(),
            .output = data.data(),
            .count = count * ranks,
            .factor = static_cast<double>(world.rank() + 1)};
  const Status reduced = group.run(call);
  ASSERT_TRUE(reduced.ok()) << what << ": " << reduced.error().message;
  EXPECT_EQ(data, want) << what;
  data = input;
  Bytes mine(count * size);
  call.op = OpKind::kReduceScatter;
  call.output = mine.data();
  call.count = count;
  Result<WorkRef> work = group.start(call);
  ASSERT_TRUE(work.ok()) << what << ": " << work.error().message;
  const Status scattered = (*work)->wait(Deadline::after_ms(60'000));
  ASSERT_TRUE(scattered.ok()) << what << ": " << scattered.error().message;
  const std::size_t begin = static_cast<std::size_t>(world.rank()) * count * size;
  EXPECT_EQ(std::memcmp(mine.data(), want.data() + begin, mine.size()), 0) << what;
  EXPECT_EQ(data, input) << what << " wrote its input";
}

TEST_P(DTypes, EveryReduction) {
  on_ranks(GetParam(), [](World& world) {
    for (int type = 0; type < kDTypeCount; ++type) {
      for (int op = 0; op < kRedOpCount; ++op) {
        if (reducible(static_cast<DType>(type), static_cast<RedOp>(op))) {
          check_pair(world, static_cast<DType>(type), static_cast<RedOp>(op), 5);
          check_pair(world, static_cast<DType>(type), static_cast<RedOp>(op), 3001);
        }
      }
    }
  });
}

TEST_P(DTypes, OthersAreRefusedWithTheReason) {
  on_ranks(GetParam(), [](World& world) {
    std::uint64_t value[2] = {};
    for (int type = 0; type < kDTypeCount; ++type) {
      for (int i = 0; i < kRedOpCount; ++i) {
        const DType dtype = static_cast<DType>(type);
        const RedOp op = static_cast<RedOp>(i);
        if (reducible(dtype, op)) {
          continue;
        }
        const Status status = world.communicator().all_reduce(value, value, 1, dtype, op);
        ASSERT_FALSE(status.ok());
        EXPECT_EQ(status.error().code, Code::kInvalidArgument);
        for (const std::string_view part :
             {dtype_name(dtype), red_op_name(op), why_not_reducible(dtype, op)}) {
          EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
        }
      }
    }
    EXPECT_TRUE(world.communicator().barrier().ok());
  });
}

TEST_P(DTypes, PremulSumDoesNotPairWithSum) {
  on_ranks(GetParam(), [](World& world) {
    std::vector<float> data(100, 3.0F);
    Call call{.op = OpKind::kAllReduce,
              .dtype = DType::kFloat32,
              .red_op = world.rank() == 0 ? RedOp::kPremulSum : RedOp::kSum,
              .input = data.data(),
              .output = data.data(),
              .count = data.size(),
              .factor = 2.0};
    const Status status = world.communicator().run(call);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("PREMUL_SUM"), std::string::npos)
        << status.error().message;
    EXPECT_EQ(data, std::vector<float>(100, 3.0F));
    EXPECT_TRUE(world.communicator().barrier().ok());
  });
}

TEST(DTypesAlone, OneRankScalesByItsFactor) {
  on_ranks("a", [](World& world) {
    std::vector<float> in(10, 3.0F);
    std::vector<float> out(10);
    Call call{.op = OpKind::kAllReduce,
              .dtype = DType::kFloat32,
              .red_op = RedOp::kPremulSum,
              .input = in.data(),
              .output = out.data(),
              .count = in.size(),
              .factor = 0.5};
    ASSERT_TRUE(world.communicator().run(call).ok());
    EXPECT_EQ(out, std::vector<float>(10, 1.5F));
    EXPECT_EQ(in, std::vector<float>(10, 3.0F));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, DTypes, ::testing::Values("aa", "aaa", "ab"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace isthmus
