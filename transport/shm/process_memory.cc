#include "transport/shm/process_memory.h"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>
#include <sys/uio.h>

namespace isthmus {
namespace {

// Below the kernel's own limit of a call, and short enough for a signal to be noticed.
constexpr std::size_t kCallBytesMax = std::size_t{1} << 30;

Error cannot_read(int why, int pid, const void* address, std::size_t bytes, int rank) {
  const Code code = why == ESRCH                                     ? Code::kPeerDead
                    : why == EPERM || why == EACCES || why == ENOSYS ? Code::kUnsupported
                                                                     : Code::kIo;
  Error error =
      system_error(code, why,
                   fmt::format("cannot copy {} bytes at {} from the memory of rank {} (process {})",
                               bytes, address, rank, pid));
  error.culprit = rank;
  return error;
}

}  // namespace

Status read_process(int pid, const void* address, std::byte* into, std::size_t bytes, int rank) {
  // The kernel only reads there; its interface has one type for both sides.
  auto* from = const_cast<std::byte*>(static_cast<const std::byte*>(address));
  while (bytes > 0) {
    const std::size_t wanted = std::min(bytes, kCallBytesMax);
    const iovec here{.iov_base = into, .iov_len = wanted};
    const iovec there{.iov_base = from, .iov_len = wanted};
    const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return cannot_read(got < 0 ? errno : EFAULT, pid, from, wanted, rank);
    }
    into += got;
    from += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace isthmus
