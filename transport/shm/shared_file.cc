#include "transport/shm/shared_file.h"

#include <cerrno>
#include <cstdint>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace isthmus {
namespace {

// An invalid descriptor where memfd is refused.
Fd open_memfd(const std::string& name) {
  return Fd(static_cast<int>(::memfd_create(name.c_str(), MFD_CLOEXEC)));
}

std::string room_in_dev_shm() {
  struct statvfs info {};

  if (::statvfs("/dev/shm", &info) != 0) {
    return "its free space is not known";
  }
  return fmt::format("{} are free", std::uint64_t{info.f_bavail} * info.f_frsize);
}

// Touching a page that a full /dev/shm cannot give would be a SIGBUS.
Status reserve(const Fd& fd, std::size_t bytes) {
  const int failure = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (failure != 0) {
    return system_error(Code::kResource, failure,
                        fmt::format("/dev/shm cannot hold {} bytes ({}); enlarge it (docker run "
                                    "--shm-size) or lower ISTHMUS_STAGING_MB",
                                    bytes, room_in_dev_shm()));
  }
  return {};
}

Result<Fd> open_file(std::size_t bytes) {
  Fd fd(::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot create {} bytes of shared memory: memfd is not used "
                                    "here, and a file in /dev/shm is refused",
                                    bytes));
  }
  ISTHMUS_TRY(reserve(fd, bytes));
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

Status resize_shared_file(const Fd& fd, std::size_t bytes) {
  struct stat info {};

  if (::fstat(fd.get(), &info) != 0) {
    return system_error(Code::kIo, errno, "cannot stat shared memory");
  }
  if (static_cast<std::size_t>(info.st_size) < bytes) {
    return reserve(fd, bytes);
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot size shared memory to {} bytes", bytes));
  }
  return {};
}

}  // namespace isthmus
