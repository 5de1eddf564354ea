#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace isthmus {

// How a schedule cuts the caller's data: `blocks` blocks of 2^pieces_log2 pieces each. A mark m is
// the boundary before piece (m mod pieces) of block (m / pieces).
//   dense:  the whole buffer is cut into equal blocks of whole cache lines (the last ones shorter
//   or
//           empty); all_reduce and broadcast. pieces_log2 is 0.
//   ranked: block r belongs to rank r of the group and holds count elements; all_gather and
//           reduce_scatter. Pieces are whole cache lines except a block's last one. Of an
//           operation with shards there are fewer blocks, and ranks share them.
struct Partition {
  bool ranked = false;
  std::uint32_t blocks = 1;
  std::uint32_t pieces_log2 = 0;

  std::uint32_t pieces() const { return 1U << pieces_log2; }

  std::uint32_t marks() const { return blocks << pieces_log2; }

  bool operator==(const Partition&) const = default;
};

inline constexpr std::size_t kCacheLine = 64;

constexpr std::size_t align_line(std::size_t bytes) {
  return (bytes + kCacheLine - 1) & ~(kCacheLine - 1);
}

// A Partition bound to byte counts: turns marks into offsets. Pure arithmetic, a few ns.
class Geometry {
 public:
  Geometry() = default;

  // dense: bytes is the whole buffer; ranked: bytes is one rank's block.
  Geometry(const Partition& partition, std::size_t bytes)
      : pieces_log2_(partition.pieces_log2), mask_((1U << partition.pieces_log2) - 1) {
    if (partition.ranked) {
      block_bytes_ = bytes;
      total_bytes_ = bytes * partition.blocks;
    } else {
      block_bytes_ = partition.blocks == 1
                         ? align_line(bytes)
                         : align_line((bytes + partition.blocks - 1) / partition.blocks);
      total_bytes_ = bytes;
    }
    piece_bytes_ = align_line((block_bytes_ + mask_) >> pieces_log2_);
  }

  // Byte offset of a mark in the whole buffer.
  std::size_t offset(std::uint32_t mark) const {
    const std::size_t in_block = std::min((mark & mask_) * piece_bytes_, block_bytes_);
    return std::min((mark >> pieces_log2_) * block_bytes_ + in_block, total_bytes_);
  }

  std::size_t length(std::uint32_t begin, std::uint32_t end) const {
    return offset(end) - offset(begin);
  }

  // Bytes of one unit of scratch, slot and stage: the largest piece, in whole cache lines.
  std::size_t unit_bytes() const { return piece_bytes_; }

  std::size_t total_bytes() const { return total_bytes_; }

  std::size_t block_bytes() const { return block_bytes_; }

 private:
  std::uint32_t pieces_log2_ = 0;
  std::uint32_t mask_ = 0;
  std::size_t block_bytes_ = 0;
  std::size_t piece_bytes_ = 0;
  std::size_t total_bytes_ = 0;
};

}  // namespace isthmus
