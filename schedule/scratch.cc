#include "schedule/scratch.h"

#include <algorithm>
#include <utility>

namespace isthmus {
namespace {

// A kept block serves what needs at least this share of it: large ones wait for large runs.
constexpr std::size_t kWasteMost = 4;

}  // namespace

ScratchPool::Block ScratchPool::take(std::size_t bytes) {
  auto best = kept_.end();
  for (auto at = kept_.begin(); at != kept_.end(); ++at) {
    const bool fits = at->bytes >= bytes && at->bytes / kWasteMost <= bytes;
    if (fits && (best == kept_.end() || at->bytes < best->bytes)) {
      best = at;
    }
  }
  if (best != kept_.end()) {
    Block block = std::move(*best);
    kept_.erase(best);
    return block;
  }
  const std::size_t size = std::max(align_line(bytes), kCacheLine);
  auto* const memory =
      static_cast<std::byte*>(::operator new(size, std::align_val_t{kCacheLine}, std::nothrow));
  if (memory == nullptr) [[unlikely]] {
    return {};
  }
  return Block{.memory = std::unique_ptr<std::byte, Block::Free>(memory), .bytes = size};
}

void ScratchPool::give(Block block) {
  if (block.memory == nullptr) {
    return;
  }
  kept_.push_back(std::move(block));
  while (kept_.size() > kKeptMax || kept_bytes() > kKeptBytes) {
    kept_.erase(kept_.begin());
  }
}

std::size_t ScratchPool::kept_bytes() const {
  std::size_t sum = 0;
  for (const Block& block : kept_) {
    sum += block.bytes;
  }
  return sum;
}

}  // namespace isthmus
