#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace isthmus {

// What kind of failure an Error is: callers branch on this and on nothing else.
enum class Code : std::uint8_t {
  kInvalidArgument,  // the caller's fault; nothing was changed
  kMismatch,         // ranks disagree on an operation; refused, the group stays usable
  kPeerDead,         // the culprit's process is gone
  kTimeout,          // a deadline passed; the culprit is who was missing
  kAborted,          // this process aborted or destroyed the group
  kUnsupported,      // this build, machine or peer cannot do it
  kResource,         // memory, descriptors, shared memory: a limit of the machine
  kIo,               // a system call failed
  kProtocol,         // a peer sent bytes that break the protocol, or another version's
  kInternal,         // a bug of ours, survived
};

std::string_view code_name(Code code);

// A failure as a value. `message` is a full sentence for the user: object, operation, expected,
// got, errno text and, where known, the cure. Copyable, so that one failure can end many works.
struct Error {
  Code code = Code::kInternal;
  int sys_errno = 0;  // 0 when no system call was involved
  int culprit = -1;   // global rank that is to blame, -1 when unknown
  std::string message;

  std::string to_string() const;
};

// Builds an Error that ends in ": <strerror> (errno N)".
Error system_error(Code code, int sys_errno, std::string message);

// A value or an Error: the only way to fail below plugins/.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)  // NOLINT(google-explicit-constructor)
      : state_(std::in_place_index<0>, std::move(value)) {}

  Result(Error error)  // NOLINT(google-explicit-constructor)
      : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }

  explicit operator bool() const { return ok(); }

  T& value() & {
    ISTHMUS_CHECK(ok(), "Result holds an error");
    return std::get<0>(state_);
  }

  const T& value() const& {
    ISTHMUS_CHECK(ok(), "Result holds an error");
    return std::get<0>(state_);
  }

  T&& value() && {
    ISTHMUS_CHECK(ok(), "Result holds an error");
    return std::get<0>(std::move(state_));
  }

  T& operator*() & { return value(); }

  const T& operator*() const& { return value(); }

  T* operator->() { return &value(); }

  const T* operator->() const { return &value(); }

  const Error& error() const {
    ISTHMUS_CHECK(!ok(), "Result holds a value");
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;

  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_.has_value(); }

  explicit operator bool() const { return ok(); }

  const Error& error() const {
    ISTHMUS_CHECK(!ok(), "Result holds no error");
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace isthmus

// Returns the error of `expr` from the enclosing function, else goes on.
#define ISTHMUS_TRY(expr)                               \
  do {                                                  \
    if (auto try_result_ = (expr); !try_result_.ok()) { \
      return try_result_.error();                       \
    }                                                   \
  } while (false)

#define ISTHMUS_CONCAT_(a, b) a##b
#define ISTHMUS_CONCAT(a, b) ISTHMUS_CONCAT_(a, b)

// `ISTHMUS_ASSIGN(auto fd, open_it())` declares fd from the value, or returns the error.
#define ISTHMUS_ASSIGN(declaration, expr)                    \
  auto ISTHMUS_CONCAT(assign_result_, __LINE__) = (expr);    \
  if (!ISTHMUS_CONCAT(assign_result_, __LINE__).ok()) {      \
    return ISTHMUS_CONCAT(assign_result_, __LINE__).error(); \
  }                                                          \
  declaration = std::move(ISTHMUS_CONCAT(assign_result_, __LINE__)).value()
