#include "transport/shm/shared_file.h"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace isthmus {
namespace {

Result<Fd> open_memory(const std::string& name, std::size_t bytes, bool named) {
  if (!named) {
    const int fd = static_cast<int>(::memfd_create(name.c_str(), MFD_CLOEXEC));
    if (fd >= 0) {
      return Fd(fd);
    }
  }
  const int fd = ::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot create {} bytes of shared memory: memfd is not allowed "
                                    "and neither is a file in /dev/shm",
                                    bytes));
  }
  return Fd(fd);
}

}  // namespace

Result<Fd> make_shared_file(const std::string& name, std::size_t bytes, bool named) {
  ISTHMUS_ASSIGN(Fd fd, open_memory(name, bytes, named));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot size shared memory to {} bytes", bytes));
  }
  if (named) {
    const int failure = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
    if (failure != 0) {
      return system_error(Code::kResource, failure,
                          fmt::format("/dev/shm cannot hold {} bytes; enlarge it (docker run "
                                      "--shm-size) or lower ISTHMUS_STAGING_MB",
                                      bytes));
    }
  }
  return fd;
}

}  // namespace isthmus
