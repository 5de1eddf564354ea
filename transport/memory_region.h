#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/export.h"

namespace isthmus {

class BufferPool;

// A buffer for collectives, in memory that the ranks of the node read in place where mapped() says
// so: large operations on such buffers skip staging. Owned; goes back to its pool when destroyed,
// and must outlive the operations that use it. It may outlive its world. Aligned to pages; contents
// are undefined at first. A forked child does not have the memory: it must not touch it.
// Move-only. Thread rule: as a pointer.
class ISTHMUS_API MemoryRegion {
 public:
  MemoryRegion() = default;

  MemoryRegion(std::shared_ptr<BufferPool> pool, std::byte* data, std::size_t bytes);
  ~MemoryRegion();

  MemoryRegion(MemoryRegion&& other) noexcept;
  MemoryRegion& operator=(MemoryRegion&& other) noexcept;
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  std::byte* data() const { return data_; }

  // As it was asked for.
  std::size_t size() const { return bytes_; }

  bool mapped() const;

 private:
  void reset();

  std::shared_ptr<BufferPool> pool_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace isthmus
