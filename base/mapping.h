#pragma once

#include <cstddef>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace isthmus {

// Address space at a multiple of `alignment` (a power of two; both of whole pages), without access
// or memory: to be mapped over (MAP_FIXED), and unmapped by the caller. Fails with kResource.
Result<std::byte*> reserve_addresses(std::size_t bytes, std::size_t alignment);

// Owns one memory mapping that a forked child does not get (MADV_DONTFORK). Move-only.
class Mapping {
 public:
  Mapping() = default;

  ~Mapping() { reset(); }

  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Maps `bytes` of `fd` from offset 0, readable and, when asked for, writable.
  static Result<Mapping> create(const Fd& fd, std::size_t bytes, bool writable);

  // The same at a multiple of `alignment` (a power of two, of pages), and without a claim on memory
  // that nobody has written yet: for a sparse file.
  static Result<Mapping> create_aligned(const Fd& fd, std::size_t bytes, bool writable,
                                        std::size_t alignment);

  // Zeroed memory of this process alone, also excluded from fork.
  static Result<Mapping> create_private(std::size_t bytes);

  std::byte* data() const { return data_; }

  std::size_t size() const { return bytes_; }

 private:
  void reset();
  static Result<Mapping> map(void* at, int fd, std::size_t bytes, int access, int flags);

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace isthmus
