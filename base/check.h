#pragma once

namespace isthmus {

// Prints the broken invariant to stderr and aborts. Never returns.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* message);

}  // namespace isthmus

// A broken invariant of ours, checked in release builds too. Never used on input or system calls.
#define ISTHMUS_CHECK(condition, message)                               \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::isthmus::check_failed(__FILE__, __LINE__, #condition, message); \
    }                                                                   \
  } while (false)
