#include "transport/message_pools.h"

namespace isthmus {

std::uint64_t eager_cost(std::size_t payload_bytes) {
  // The pool's three block sizes, and what a lane keeps beside a block.
  constexpr std::uint64_t kEntryBytes = 128;
  if (payload_bytes <= 128) {
    return 128 + kEntryBytes;
  }
  return (payload_bytes <= 1024 ? 1024 : kEagerBytes) + kEntryBytes;
}

std::size_t BlockPool::size_class(std::size_t bytes) {
  if (bytes <= kSizes[0]) {
    return 0;
  }
  return bytes <= kSizes[1] ? 1 : 2;
}

std::byte* BlockPool::take(std::size_t bytes) {
  std::vector<std::byte*>& free = free_[size_class(bytes)];
  if (!free.empty()) {
    std::byte* block = free.back();
    free.pop_back();
    return block;
  }
  all_.push_back(std::make_unique_for_overwrite<std::byte[]>(kSizes[size_class(bytes)]));
  return all_.back().get();
}

void BlockPool::give_back(std::byte* block, std::size_t bytes) {
  free_[size_class(bytes)].push_back(block);
}

void CancelledOperations::add(std::uint64_t operation) {
  if (!set_.insert(operation).second) {
    return;
  }
  order_.push_back(operation);
  if (order_.size() > kRemembered) {
    set_.erase(order_.front());
    order_.pop_front();
  }
}

void CancelledOperations::remove(std::uint64_t operation) {
  if (!set_.empty()) {
    set_.erase(operation);
  }
}

}  // namespace isthmus
