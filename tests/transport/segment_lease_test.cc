// Staging is handed out so that lines are not written again while first-level caches hold them, and
// so that all of it can be had. Leases of one segment are taken and given back; no memory is read.
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "transport/shm/segment.h"

namespace isthmus {
namespace {

constexpr std::size_t kKib = 1 << 10;

Segment make(std::size_t stage_bytes) {
  Result<Segment> made = Segment::create({.stage_bytes = stage_bytes, .unshared = true});
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

// Offsets of leases that are each given back before the next.
std::vector<std::size_t> offsets(Segment& segment, std::size_t bytes, bool spread, int count) {
  std::vector<std::size_t> found;
  for (int i = 0; i < count; ++i) {
    const std::optional<StageLease> lease = segment.lease(bytes, spread);
    EXPECT_TRUE(lease.has_value());
    found.push_back(lease->offset);
    segment.release(*lease);
  }
  return found;
}

TEST(Segment, SmallLeasesMoveOnForReadersOnOtherCores) {
  Segment segment = make(8 << 20);
  for (const std::size_t bytes : {16 * kKib, 64 * kKib, 128 * kKib}) {
    const std::vector<std::size_t> found = offsets(segment, bytes, true, 32);
    for (std::size_t i = 1; i < found.size(); ++i) {
      // Leases in between, until the same chunk comes again.
      std::size_t between = 0;
      while (i + between < found.size() && found[i + between] != found[i - 1]) {
        ++between;
      }
      if (i + between < found.size()) {
        EXPECT_GE(between * bytes, 128 * kKib) << bytes;
      }
    }
    EXPECT_LE(std::set<std::size_t>(found.begin(), found.end()).size(), 9U);
  }
}

TEST(Segment, OtherLeasesUseTheLowestChunks) {
  Segment segment = make(8 << 20);
  for (const std::size_t offset : offsets(segment, 64 * kKib, false, 8)) {
    EXPECT_EQ(offset, 0U);
  }
  for (const std::size_t offset : offsets(segment, 1024 * kKib, true, 8)) {
    EXPECT_EQ(offset, 0U);
  }
}

TEST(Segment, AllOfTheStageCanBeLeased) {
  Segment segment = make(4 << 20);
  constexpr std::size_t kChunks = (4 << 20) / Segment::kChunkBytes;
  std::vector<StageLease> held;
  for (std::size_t i = 0; i < kChunks; ++i) {
    const std::optional<StageLease> lease = segment.lease(kKib, true);
    ASSERT_TRUE(lease.has_value());
    held.push_back(*lease);
  }
  EXPECT_FALSE(segment.lease(kKib, true).has_value());
  EXPECT_EQ(segment.leased_bytes(), std::size_t{4} << 20);
  segment.release(held.front());
  EXPECT_EQ(segment.lease(0, true).value_or(StageLease{1, 1}).offset, held.front().offset);
}

}  // namespace
}  // namespace isthmus
