#include "base/huge_pages.h"

#include <cerrno>

#include <fmt/format.h>
#include <sys/mman.h>

namespace isthmus {
namespace {

// MADV_COLLAPSE, which C libraries before 2.37 do not name.
constexpr int kCollapse = 25;

}  // namespace

Status collapse_huge_pages(std::byte* data, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(data) % kHugePageBytes != 0 || bytes % kHugePageBytes != 0) {
    return Error{.code = Code::kUnsupported,
                 .message = fmt::format("cannot use huge pages for {} bytes: not in whole ones of "
                                        "{} bytes",
                                        bytes, kHugePageBytes)};
  }
  // The kernel wants one page of each to be there. Reading gives it one, and changes nothing.
  for (std::size_t at = 0; at < bytes; at += kHugePageBytes) {
    static_cast<void>(*static_cast<volatile std::byte*>(data + at));
  }
  if (::madvise(data, bytes, kCollapse) == 0) {
    return {};
  }
  const int why = errno;
  const bool later = why == ENOMEM || why == EAGAIN || why == EBUSY || why == EINTR;
  return system_error(later ? Code::kResource : Code::kUnsupported, why,
                      fmt::format("cannot use huge pages for {} bytes", bytes));
}

}  // namespace isthmus
