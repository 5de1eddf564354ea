#include "base/log.h"

#include <array>
#include <atomic>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace isthmus {
namespace {

struct LogState {
  std::atomic<int> level{static_cast<int>(LogLevel::kWarn)};
  std::atomic<int> rank{-1};
  std::atomic<int> fd{STDERR_FILENO};
};

LogState& state() {
  static LogState log_state;
  return log_state;
}

constexpr std::array<std::string_view, 5> kLevelNames = {"error", "warn", "info", "debug", "trace"};

std::string expand(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    ++i;
    if (pattern[i] == 'p') {
      out += fmt::format("{}", ::getpid());
    } else if (pattern[i] == 'h') {
      std::array<char, 256> host{};
      ::gethostname(host.data(), host.size() - 1);
      out += host.data();
    } else {
      out += pattern[i];
    }
  }
  return out;
}

}  // namespace

void log_configure(std::string_view level, std::string_view file) {
  int value = static_cast<int>(LogLevel::kWarn);
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == level) {
      value = static_cast<int>(i);
    }
  }
  state().level.store(value, std::memory_order_relaxed);
  if (!file.empty()) {
    const int fd = ::open(expand(file).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) {
      state().fd.store(fd, std::memory_order_relaxed);
    } else {
      log_line(
          LogLevel::kWarn, "log",
          fmt::format("cannot open log file {}: {}; using stderr", file, std::strerror(errno)));
    }
  }
}

void log_set_rank(int rank) {
  state().rank.store(rank, std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) {
  return static_cast<int>(level) <= state().level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view subsystem, std::string_view text) {
  if (!log_enabled(level)) {
    return;
  }
  const int rank = state().rank.load(std::memory_order_relaxed);
  const std::string who = rank < 0 ? std::string() : fmt::format(" rank {}", rank);
  const std::string line = fmt::format(
      "isthmus{} {} {}: {}\n", who, kLevelNames[static_cast<std::size_t>(level)], subsystem, text);
  // One write per line keeps lines of several ranks apart; a failed log write has no cure.
  [[maybe_unused]] const ssize_t written =
      ::write(state().fd.load(std::memory_order_relaxed), line.data(), line.size());
}

}  // namespace isthmus
