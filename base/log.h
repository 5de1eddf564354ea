#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace isthmus {

// error and warn: something the user must or should act on. info: once per job. debug: once per
// object. trace: once per step.
enum class LogLevel { kError, kWarn, kInfo, kDebug, kTrace };

// Sets level and file ("" is stderr; %h host, %p pid). An unknown level means warn.
void log_configure(std::string_view level, std::string_view file);

// The rank that log lines of this thread's process carry; -1 before it is known.
void log_set_rank(int rank);

bool log_enabled(LogLevel level);

// Writes one line: "isthmus [rank 3] subsystem: text". Atomic per line, any thread.
void log_line(LogLevel level, std::string_view subsystem, std::string_view text);

template <typename... Args>
void log(LogLevel level, std::string_view subsystem, fmt::format_string<Args...> format,
         Args&&... args) {
  if (log_enabled(level)) {
    log_line(level, subsystem, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace isthmus
