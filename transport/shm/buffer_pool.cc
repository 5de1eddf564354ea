#include "transport/shm/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/fork.h"
#include "base/mapping.h"

namespace isthmus {
namespace {

constexpr std::size_t kPage = SharedHeap::kPage;
constexpr std::size_t kHugePage = SharedHeap::kHugePage;

// Blocks of like lengths serve each other: an eighth of a power of two apart, so that at most an
// eighth is wasted.
std::size_t block_bytes(std::size_t bytes) {
  const std::size_t step = std::max(std::bit_floor(bytes) / 8, kPage);
  return (bytes + step - 1) / step * step;
}

// Private memory, aligned to huge pages when it holds one.
Result<std::byte*> map_private(std::size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const auto refused = [bytes](int why) {
    return system_error(Code::kResource, why,
                        fmt::format("cannot map {} bytes for a buffer (free memory, raise ulimit "
                                    "-v or the cgroup's memory.max, or shard in smaller units)",
                                    bytes));
  };
  const Result<std::byte*> at = reserve_addresses(bytes, huge ? kHugePage : kPage);
  if (!at.ok()) {
    return refused(at.error().sys_errno);
  }
  if (::mmap(*at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    const int why = errno;
    ::munmap(*at, bytes);
    return refused(why);
  }
  if (huge) {
    // Advice: without huge pages the block serves as well.
    static_cast<void>(::madvise(*at, bytes, MADV_HUGEPAGE));
  }
  return *at;
}

}  // namespace

BufferPool::~BufferPool() {
  for (const auto& [bytes, blocks] : idle_) {
    for (std::byte* const block : blocks) {
      free(block, bytes);
    }
  }
}

Result<std::byte*> BufferPool::make(std::size_t bytes) {
  if (heap_.size() != 0) {
    std::byte* const block = heap_.take(bytes);
    if (block != nullptr) {
      return block;
    }
  }
  return map_private(bytes);
}

void BufferPool::free(std::byte* data, std::size_t bytes) {
  if (heap_.contains(data, bytes)) {
    heap_.give_back(data, bytes);
  } else {
    ::munmap(data, bytes);
  }
}

Result<MemoryRegion> BufferPool::take(std::size_t bytes) {
  const std::size_t length = block_bytes(bytes);
  const std::lock_guard lock(mutex_);
  std::vector<std::byte*>& kept = idle_[length];
  std::byte* block = nullptr;
  if (!kept.empty()) {
    block = kept.back();
    kept.pop_back();
    idle_bytes_ -= length;
  } else {
    ISTHMUS_ASSIGN(block, make(length));
  }
  used_bytes_ += length;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return MemoryRegion(shared_from_this(), block, bytes);
}

void BufferPool::give_back(std::byte* data, std::size_t bytes) {
  if (forked_child()) {
    return;  // it does not have the memory, and the parent goes on using it
  }
  const std::size_t length = block_bytes(bytes);
  const std::lock_guard lock(mutex_);
  used_bytes_ -= length;
  idle_[length].push_back(data);
  idle_bytes_ += length;
  // Lengths that are not asked for any more go first.
  for (auto& [other, blocks] : idle_) {
    while (idle_bytes_ + used_bytes_ > peak_bytes_ && other != length && !blocks.empty()) {
      free(blocks.back(), other);
      blocks.pop_back();
      idle_bytes_ -= other;
    }
  }
}

}  // namespace isthmus
