#include "base/mapping.h"

#include <cerrno>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/fork.h"

namespace isthmus {

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Result<Mapping> Mapping::create(const Fd& fd, std::size_t bytes, bool writable) {
  return map(fd.get(), bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED);
}

Result<Mapping> Mapping::create_private(std::size_t bytes) {
  return map(-1, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
}

Result<Mapping> Mapping::map(int fd, std::size_t bytes, int access, int flags) {
  void* data = ::mmap(nullptr, bytes, access, flags, fd, 0);
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
