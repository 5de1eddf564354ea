#include "transport/shm/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/fork.h"

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

// Private memory, aligned to huge pages when it holds one. The rest of the mapping is given back at
// once.
Result<std::byte*> map_private(std::size_t bytes) {
  const std::size_t slack = bytes >= kHugePage ? kHugePage - kPage : 0;
  void* const mapped =
      ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot map {} bytes for a buffer (free memory, raise ulimit "
                                    "-v or the cgroup's memory.max, or shard in smaller units)",
                                    bytes + slack));
  }
  auto* const begin = static_cast<std::byte*>(mapped);
  if (slack == 0) {
    return begin;
  }
  const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  const std::size_t head = past == 0 ? 0 : kHugePage - past;
  if (head > 0) {
    ::munmap(begin, head);
  }
  if (slack > head) {
    ::munmap(begin + head + bytes, slack - head);
  }
  // Advice: without huge pages the block serves as well.
  static_cast<void>(::madvise(begin + head, bytes, MADV_HUGEPAGE));
  return begin + head;
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
