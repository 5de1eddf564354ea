#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/fd.h"
#include "base/huge_pages.h"
#include "base/mapping.h"
#include "base/result.h"

namespace isthmus {

// One rank's memory for exposed buffers: a sparse anonymous file as large as the machine's memory,
// mapped whole by its owner and by the other ranks of the node. It costs
// address space, and memory only where blocks are written; what is given back goes back to the
// system at once. Large blocks lie on huge pages where the kernel has them.
// Thread rule: data(), size() and contains() from any thread; take() and give_back() one at a time.
class SharedHeap {
 public:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kHugePage = kHugePageBytes;

  SharedHeap() = default;

  static Result<SharedHeap> create(int rank, std::size_t bytes);

  // Maps a peer's heap.
  static Result<SharedHeap> attach(Fd fd, int rank);

  const Fd& fd() const { return fd_; }

  std::byte* data() const { return mapping_.data(); }

  // 0 where there is no heap.
  std::size_t size() const { return mapping_.size(); }

  bool contains(const void* data, std::size_t bytes) const {
    const auto offset =
        reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(mapping_.data());
    return bytes <= mapping_.size() && offset <= mapping_.size() - bytes;
  }

  // Owner: the first gap that holds whole pages of `bytes`, from a huge page on when it is as
  // large; null where there is none.
  std::byte* take(std::size_t bytes);

  // Owner: `bytes` as they were taken.
  void give_back(std::byte* data, std::size_t bytes);

 private:
  Fd fd_;
  Mapping mapping_;
  std::map<std::size_t, std::size_t> gaps_;  // by offset: length
};

}  // namespace isthmus
