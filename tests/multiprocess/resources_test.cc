// Goal: what ranks take of the machine: large results pass the caches by and are right.
// Method: forked ranks; results so large that copies stream.

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/copy.h"
#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::Ranks;

TEST(Resources, ResultsThatNoCacheHoldsAreRight) {
  constexpr std::size_t kRanks = 4;
  constexpr std::size_t kBlock =
      kStreamingFootprint / kRanks / kRanks / sizeof(std::int32_t) + 1037;
  Ranks::Options options;
  options.size = static_cast<int>(kRanks);
  Ranks ranks(options, [&](World& world) {
    const auto value = [](std::size_t rank, std::size_t i) {
      return static_cast<std::int32_t>(i * 2654435761U + rank * 40503U);
    };
    std::vector<std::int32_t> mine(kBlock);
    for (std::size_t i = 0; i < kBlock; ++i) {
      mine[i] = value(static_cast<std::size_t>(world.rank()), i);
    }
    std::vector<std::int32_t> all(kRanks * kBlock);
    const Status done =
        world.communicator().all_gather(mine.data(), all.data(), kBlock, DType::kInt32);
    if (!done.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", world.rank(), done.error().message.c_str());
      return 1;
    }
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      for (std::size_t i = 0; i < kBlock; ++i) {
        if (all[rank * kBlock + i] != value(rank, i)) {
          std::fprintf(stderr, "rank %d: element %zu of rank %zu\n", world.rank(), i, rank);
          return 2;
        }
      }
    }
    return 0;
  });
  for (const int code : ranks.wait_all()) {
    EXPECT_EQ(code, 0);
  }
}

}  // namespace
}  // namespace isthmus
