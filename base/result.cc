#include "base/result.h"

#include <cstring>

#include <fmt/format.h>

namespace isthmus {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kMismatch:
      return "mismatch";
    case Code::kPeerDead:
      return "peer dead";
    case Code::kTimeout:
      return "timeout";
    case Code::kAborted:
      return "aborted";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kResource:
      return "resource limit";
    case Code::kIo:
      return "system call failed";
    case Code::kProtocol:
      return "protocol error";
    case Code::kInternal:
      return "internal error";
  }
  return "unknown";
}

std::string Error::to_string() const {
  return fmt::format("{}: {}", code_name(code), message);
}

Error system_error(Code code, int sys_errno, std::string message) {
  char text[128];
  // The GNU strerror_r returns the text, in `text` or in static storage.
  const char* reason = ::strerror_r(sys_errno, text, sizeof text);
  return Error{.code = code,
               .sys_errno = sys_errno,
               .culprit = -1,
               .message = fmt::format("{}: {} (errno {})", message, reason, sys_errno)};
}

}  // namespace isthmus
