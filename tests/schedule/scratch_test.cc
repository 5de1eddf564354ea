// Goal: runs that follow each other use the same scratch memory, within bounds. Method: addresses
// and sizes of blocks taken and given back.

#include "schedule/scratch.h"

#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

namespace isthmus {
namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;

TEST(Scratch, TheNextRunGetsTheSameMemory) {
  ScratchPool pool;
  ScratchPool::Block first = pool.take(3 * kMib);
  ASSERT_GE(first.bytes, 3 * kMib);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.memory.get()) % kCacheLine, 0U);
  const std::byte* const memory = first.memory.get();
  pool.give(std::move(first));
  ScratchPool::Block smaller = pool.take(kMib);
  EXPECT_EQ(smaller.memory.get(), memory);
  // Two at a time are two.
  EXPECT_NE(pool.take(kMib).memory.get(), memory);
}

TEST(Scratch, WhatTheSystemDoesNotGiveIsABlockWithoutMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator ends the process instead";
#endif
  ScratchPool pool;
  ScratchPool::Block block = pool.take(std::size_t{1} << 62);
  EXPECT_EQ(block.memory, nullptr);
  pool.give(std::move(block));
  EXPECT_EQ(pool.kept_bytes(), 0U);
  EXPECT_NE(pool.take(kMib).memory, nullptr);
}

TEST(Scratch, ASmallRunLeavesALargeBlock) {
  ScratchPool pool;
  pool.give(pool.take(64 * kMib));
  EXPECT_LT(pool.take(100).bytes, kMib);
  EXPECT_EQ(pool.kept_bytes(), 64 * kMib);
}

TEST(Scratch, KeepsNoMoreThanItSays) {
  ScratchPool pool;
  pool.give(pool.take(ScratchPool::kKeptBytes + 1));
  EXPECT_EQ(pool.kept_bytes(), 0U);
  std::vector<ScratchPool::Block> blocks;
  for (std::size_t i = 0; i <= ScratchPool::kKeptMax; ++i) {
    blocks.push_back(pool.take((i + 1) * kMib));
  }
  for (ScratchPool::Block& block : blocks) {
    pool.give(std::move(block));
  }
  // The oldest, of one MiB, went.
  constexpr std::size_t kCount = ScratchPool::kKeptMax + 1;
  EXPECT_EQ(pool.kept_bytes(), (kCount * (kCount + 1) / 2 - 1) * kMib);
  pool.give({});
  EXPECT_EQ(pool.kept_bytes(), (kCount * (kCount + 1) / 2 - 1) * kMib);
}

}  // namespace
}  // namespace isthmus
