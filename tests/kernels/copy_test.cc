// Goal: both copies move exactly the bytes asked for. Method: every size up to 300 and some large
// ones, at several alignments of both sides, between guard bytes.
#include "kernels/copy.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace isthmus {
namespace {

constexpr std::size_t kGuard = 64;
constexpr std::uint8_t kGuardByte = 0xA5;

void check_copy(void (*copy)(void*, const void*, std::size_t), std::size_t bytes,
                std::size_t dst_offset, std::size_t src_offset) {
  std::vector<std::uint8_t> src(bytes + src_offset);
  for (std::size_t i = 0; i < src.size(); ++i) {
    src[i] = static_cast<std::uint8_t>((31 * i + 7) % 251);
  }
  std::vector<std::uint8_t> dst(kGuard + dst_offset + bytes + kGuard, kGuardByte);
  std::vector<std::uint8_t> want = dst;
  const std::size_t start = kGuard + dst_offset;
  for (std::size_t i = 0; i < bytes; ++i) {
    want[start + i] = src[src_offset + i];
  }
  copy(dst.data() + start, src.data() + src_offset, bytes);
  ASSERT_EQ(dst, want) << bytes << " bytes to offset " << dst_offset << " from " << src_offset;
}

void check_copies(void (*copy)(void*, const void*, std::size_t)) {
  constexpr std::size_t kOffsets[] = {0, 1, 3, 8, 17, 63};
  for (const std::size_t dst_offset : kOffsets) {
    for (const std::size_t src_offset : kOffsets) {
      for (std::size_t bytes = 0; bytes <= 300; ++bytes) {
        check_copy(copy, bytes, dst_offset, src_offset);
      }
      for (const std::size_t bytes :
           {kAheadBytesMin - 1, kAheadBytesMin, kAheadBytesMin + 1, std::size_t{767},
            std::size_t{1024}, std::size_t{1087}, std::size_t{1279}, std::size_t{1280},
            kStreamingBytesMin - 1, kStreamingBytesMin, kStreamingBytesMin + 319,
            std::size_t{100003}}) {
        check_copy(copy, bytes, dst_offset, src_offset);
      }
    }
  }
}

TEST(Copy, MovesEveryByte) {
  check_copies(&copy_bytes);
}

TEST(Copy, StreamingMovesEveryByte) {
  check_copies(&copy_bytes_streaming);
}

}  // namespace
}  // namespace isthmus
