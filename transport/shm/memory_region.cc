#include "transport/memory_region.h"

#include "transport/shm/buffer_pool.h"

namespace isthmus {

MemoryRegion::MemoryRegion(std::shared_ptr<BufferPool> pool, std::byte* data, std::size_t bytes)
    : pool_(std::move(pool)), data_(data), bytes_(bytes) {}

MemoryRegion::~MemoryRegion() {
  reset();
}

MemoryRegion::MemoryRegion(MemoryRegion&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
  if (this != &other) {
    reset();
    pool_ = std::move(other.pool_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

bool MemoryRegion::mapped() const {
  return pool_ != nullptr && pool_->mapped(data_, bytes_);
}

void MemoryRegion::reset() {
  if (data_ != nullptr) {
    pool_->give_back(data_, bytes_);
  }
  pool_.reset();
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace isthmus
