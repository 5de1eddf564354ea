#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "schedule/geometry.h"

namespace isthmus {

// Scratch memory of runs, kept for the next ones: a steady sequence of operations neither allocates
// nor touches it anew (its pages stay mapped and warm). Contents are undefined. Bounds: kKeptMax
// blocks and kKeptBytes are kept, the oldest goes first; a block of more is freed at once.
// Thread rule: the engine's baton.
class ScratchPool {
 public:
  static constexpr std::size_t kKeptMax = 8;
  static constexpr std::size_t kKeptBytes = std::size_t{256} << 20;

  // Starts at a cache line. Owned by the run between take() and give().
  struct Block {
    struct Free {
      void operator()(std::byte* start) const {
        ::operator delete(start, std::align_val_t{kCacheLine});
      }
    };

    std::unique_ptr<std::byte, Free> memory;
    std::size_t bytes = 0;
  };

  // A block of `bytes` or more: the smallest one kept that is not several times too large. Without
  // memory where the system has none to give.
  Block take(std::size_t bytes);

  // Takes a block back; one without memory is ignored.
  void give(Block block);

  std::size_t kept_bytes() const;

 private:
  std::vector<Block> kept_;  // the one given back last is last
};

}  // namespace isthmus
