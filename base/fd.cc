#include "base/fd.h"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/fork.h"

namespace isthmus {

Fd::Fd(int fd) : fd_(fd) {
  list_descriptor(fd_);
}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::reset() {
  if (fd_ < 0) {
    return;
  }
  // In a forked child the handler has closed it already, and the number may be somebody else's.
  if (!forked_child()) {
    unlist_descriptor(fd_);
    ::close(fd_);
  }
  fd_ = -1;
}

int Fd::release() {
  unlist_descriptor(fd_);
  return std::exchange(fd_, -1);
}

Result<Fd> Fd::duplicate() const {
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    return system_error(Code::kResource, errno, fmt::format("cannot duplicate descriptor {}", fd_));
  }
  return Fd(copy);
}

}  // namespace isthmus
