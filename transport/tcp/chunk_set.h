#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace isthmus::tcp {

// Which chunks of a message have arrived, in any order and perhaps twice. While they come in order
// it is a counter; memory, a bit a chunk, is taken only beyond 64 chunks ahead of the first missing
// one.
class ChunkSet {
 public:
  // All chunks below this one have arrived.
  std::uint32_t below() const { return below_; }

  bool contains(std::uint32_t chunk) const {
    if (chunk < below_) {
      return true;
    }
    const std::size_t ahead = chunk - below_;
    if (ahead < 64) {
      return ((near_ >> ahead) & 1) != 0;
    }
    const std::size_t word = chunk / 64;
    return word < far_.size() && ((far_[word] >> (chunk % 64)) & 1) != 0;
  }

  // A chunk that is not contained.
  void add(std::uint32_t chunk) {
    const std::size_t ahead = chunk - below_;
    if (ahead >= 64) {
      const std::size_t word = chunk / 64;
      if (word >= far_.size()) {
        far_.resize(word + 1);
      }
      far_[word] |= std::uint64_t{1} << (chunk % 64);
      return;
    }
    near_ |= std::uint64_t{1} << ahead;
    while ((near_ & 1) != 0) {
      advance();
    }
  }

 private:
  // Moves the window by the ones at its low end; what enters at the high end comes from far_.
  void advance() {
    const auto ones = static_cast<std::uint32_t>(std::countr_one(near_));
    near_ = ones == 64 ? 0 : near_ >> ones;
    below_ += ones;
    for (std::uint32_t i = 64 - ones; i < 64 && !far_.empty(); ++i) {
      const std::uint32_t chunk = below_ + i;
      const std::size_t word = chunk / 64;
      if (word < far_.size()) {
        near_ |= ((far_[word] >> (chunk % 64)) & 1) << i;
      }
    }
  }

  std::uint32_t below_ = 0;
  std::uint64_t near_ = 0;          // bit i: chunk below_ + i
  std::vector<std::uint64_t> far_;  // by chunk number; bits below the window are stale
};

}  // namespace isthmus::tcp
