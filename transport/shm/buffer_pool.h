#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "transport/memory_region.h"
#include "transport/shm/shared_heap.h"

namespace isthmus {

// Memory for buffers that are needed again and again, as a sharded layer's are in every step. Fresh
// pages cost more on their first touch than a collective that fills them, so blocks are kept and
// handed out again. What is idle never exceeds what was in use at once at the peak. Blocks come
// from a rank's shared heap; where there is none, or it is full, from this process's own memory.
// Thread rule: any thread.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // heap: of this rank; may be empty.
  explicit BufferPool(SharedHeap heap) : heap_(std::move(heap)) {}

  ~BufferPool();

  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // At least `bytes` > 0, aligned to pages.
  Result<MemoryRegion> take(std::size_t bytes);

  const SharedHeap& heap() const { return heap_; }

  // Whether the ranks of the node read these bytes in place.
  bool mapped(const void* data, std::size_t bytes) const { return heap_.contains(data, bytes); }

 private:
  friend class MemoryRegion;

  // `bytes` as they were taken.
  void give_back(std::byte* data, std::size_t bytes);

  Result<std::byte*> make(std::size_t bytes);
  void free(std::byte* data, std::size_t bytes);

  SharedHeap heap_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> idle_;  // by length of the block
  std::size_t idle_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace isthmus
