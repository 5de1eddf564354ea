#include "plugins/torch/memory.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

namespace isthmus::plugin {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Blocks of like lengths serve each other: an eighth of a power of two apart, so that at most an
// eighth is wasted.
std::size_t block_bytes(std::size_t bytes) {
  const std::size_t step = std::max(std::bit_floor(bytes) / 8, kPage);
  return (bytes + step - 1) / step * step;
}

// Aligned to huge pages when it holds one. The rest of the mapping is given back at once.
Result<void*> map_block(std::size_t bytes) {
  const std::size_t slack = bytes >= kHugePage ? kHugePage - kPage : 0;
  void* const mapped =
      ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return system_error(
        Code::kResource, errno,
        fmt::format("allocate_tensor: mmap of {} bytes (free memory, raise ulimit -v or "
                    "the cgroup's memory.max, or shard in smaller units)",
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

BufferPool& BufferPool::process() {
  static BufferPool& instance = *std::make_unique<BufferPool>().release();
  return instance;
}

BufferPool::~BufferPool() {
  for (const auto& [bytes, blocks] : idle_) {
    for (void* const block : blocks) {
      ::munmap(block, bytes);
    }
  }
}

Result<void*> BufferPool::take(std::size_t bytes) {
  const std::size_t length = block_bytes(bytes);
  {
    const std::lock_guard lock(mutex_);
    used_bytes_ += length;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    const auto found = idle_.find(length);
    if (found != idle_.end() && !found->second.empty()) {
      void* const block = found->second.back();
      found->second.pop_back();
      idle_bytes_ -= length;
      return block;
    }
  }
  Result<void*> block = map_block(length);
  if (!block.ok()) {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= length;
  }
  return block;
}

void BufferPool::give_back(void* data, std::size_t bytes) {
  const std::size_t length = block_bytes(bytes);
  std::vector<std::pair<void*, std::size_t>> surplus;
  {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= length;
    idle_[length].push_back(data);
    idle_bytes_ += length;
    // Lengths that are not asked for any more go first.
    for (auto& [other, blocks] : idle_) {
      while (idle_bytes_ + used_bytes_ > peak_bytes_ && other != length && !blocks.empty()) {
        surplus.emplace_back(blocks.back(), other);
        blocks.pop_back();
        idle_bytes_ -= other;
      }
    }
  }
  for (const auto& [block, other] : surplus) {
    ::munmap(block, other);
  }
}

}  // namespace isthmus::plugin
