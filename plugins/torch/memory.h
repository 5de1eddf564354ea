#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "base/result.h"

namespace isthmus::plugin {

// Memory for buffers that are needed again and again, as a sharded layer's are in every step. Fresh
// pages cost more on their first touch than a collective that fills them, so blocks are kept and
// handed out again; large ones lie on huge pages where the kernel has them. What is idle never
// exceeds what was in use at once at the peak. Contents are undefined.
// Thread rule: any thread.
class BufferPool {
 public:
  // The process's own. Never destroyed: tensors may outlive static objects.
  static BufferPool& process();

  BufferPool() = default;
  ~BufferPool();

  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // At least `bytes` > 0, aligned to pages.
  Result<void*> take(std::size_t bytes);

  // `bytes` as they were taken.
  void give_back(void* data, std::size_t bytes);

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> idle_;  // by length of the block
  std::size_t idle_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace isthmus::plugin
