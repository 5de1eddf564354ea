#include "transport/shm/shared_file.h"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace isthmus {
namespace {

// An invalid descriptor where memfd is refused.
Fd open_memfd(const std::string& name) {
  return Fd(static_cast<int>(::memfd_create(name.c_str(), MFD_CLOEXEC)));
}

// Its pages are reserved: touching one that a full /dev/shm cannot give would be a SIGBUS.
Result<Fd> open_file(std::size_t bytes) {
  Fd fd(::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot create {} bytes of shared memory: memfd is not used "
                                    "here, and a file in /dev/shm is refused",
                                    bytes));
  }
  const int failure = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (failure != 0) {
    return system_error(Code::kResource, failure,
                        fmt::format("/dev/shm cannot hold {} bytes; enlarge it (docker run "
                                    "--shm-size) or lower ISTHMUS_STAGING_MB",
                                    bytes));
  }
  return fd;
}

}  // namespace

Result<Fd> make_shared_file(const std::string& name, std::size_t bytes, bool named) {
  Fd fd = named ? Fd() : open_memfd(name);
  if (!fd.valid()) {
    return open_file(bytes);
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot size shared memory to {} bytes", bytes));
  }
  return fd;
}

}  // namespace isthmus
