#include "base/mapping.h"

#include <cerrno>
#include <cstdint>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/fork.h"

namespace isthmus {

Result<std::byte*> reserve_addresses(std::size_t bytes, std::size_t alignment) {
  // With room for the alignment; what is not needed is given back.
  const std::size_t space = bytes + alignment;
  void* const reserved =
      ::mmap(nullptr, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot reserve {} bytes of address space", space));
  }
  auto* const first = static_cast<std::byte*>(reserved);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(first) % alignment;
  const std::size_t head = past == 0 ? 0 : alignment - past;
  if (head > 0) {
    ::munmap(first, head);
  }
  ::munmap(first + head + bytes, space - head - bytes);
  return first + head;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Result<Mapping> Mapping::create(const Fd& fd, std::size_t bytes, bool writable) {
  return map(nullptr, fd.get(), bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED);
}

Result<Mapping> Mapping::create_aligned(const Fd& fd, std::size_t bytes, bool writable,
                                        std::size_t alignment) {
  ISTHMUS_ASSIGN(std::byte* const at, reserve_addresses(bytes, alignment));
  Result<Mapping> mapping = map(at, fd.get(), bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                                MAP_SHARED | MAP_FIXED | MAP_NORESERVE);
  if (!mapping.ok()) {
    ::munmap(at, bytes);
  }
  return mapping;
}

Result<Mapping> Mapping::create_private(std::size_t bytes) {
  return map(nullptr, -1, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
}

Result<Mapping> Mapping::map(void* at, int fd, std::size_t bytes, int access, int flags) {
  void* data = ::mmap(at, bytes, access, flags, fd, 0);
  if (data == MAP_FAILED) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot map {} bytes of memory", bytes));
  }
  // A forked child must not keep a peer's view of this rank alive.
  if (::madvise(data, bytes, MADV_DONTFORK) != 0) {
    const int why = errno;
    ::munmap(data, bytes);
    return system_error(Code::kResource, why, "cannot exclude memory from fork");
  }
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.bytes_ = bytes;
  return mapping;
}

void Mapping::reset() {
  // MADV_DONTFORK: in a forked child the range is not ours any more.
  if (data_ != nullptr && !forked_child()) {
    ::munmap(data_, bytes_);
  }
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace isthmus
