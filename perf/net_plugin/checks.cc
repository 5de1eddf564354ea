#include "perf/net_plugin/checks.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

namespace isthmus::net_plugin {
namespace {

constexpr std::size_t kTextMost = 4096;

[[noreturn]] void be_the_child(const Check& check, const std::string& path, int version, int out) {
  const std::string text = check.run(path, version);
  const std::size_t bytes = std::min(text.size(), kTextMost);
  const bool told = ::write(out, text.data(), bytes) == static_cast<ssize_t>(bytes);
  ::_exit(told ? 0 : 1);  // no destructor of a plug-in that may be broken
}

// What the child wrote until it closed its end, or until the limit.
std::string read_all(int in, const Deadline& deadline) {
  std::string text;
  std::array<char, 512> part{};
  for (;;) {
    pollfd one = {in, POLLIN, 0};
    if (::poll(&one, 1, static_cast<int>(deadline.left_ms(monotonic_ns()))) <= 0) {
      return text;
    }
    const ssize_t got = ::read(in, part.data(), part.size());
    if (got <= 0) {
      return text;
    }
    text.append(part.data(), static_cast<std::size_t>(got));
  }
}

std::string how_it_ended(pid_t child, const Deadline& deadline) {
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (deadline.passed(monotonic_ns())) {
      ::kill(-child, SIGKILL);
      ::waitpid(child, &status, 0);
      return "did not end in time: it hangs";
    }
    ::poll(nullptr, 0, 5);
  }
  ::kill(-child, SIGKILL);  // what it started
  if (WIFSIGNALED(status)) {
    return fmt::format("died of signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  }
  return WEXITSTATUS(status) == 0 ? "" : fmt::format("exited with {}", WEXITSTATUS(status));
}

}  // namespace

Verdict judge(const Check& check, const std::string& path, int version) {
  Verdict out;
  out.check = check.name;
  out.version = version;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    out.text = fmt::format("no pipe for the check: {}", std::strerror(errno));
    return out;
  }
  const Fd in(ends[0]);
  Fd write_end(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    be_the_child(check, path, version, write_end.get());
  }
  write_end.reset();
  if (child < 0) {
    out.text = fmt::format("no process for the check: {}", std::strerror(errno));
    return out;
  }
  ::setpgid(child, child);
  const Deadline deadline = Deadline::after_ms(check.limit_s * 1000);
  out.text = read_all(in.get(), deadline);
  const std::string end = how_it_ended(child, deadline);
  if (!end.empty()) {
    out.text = out.text.empty() ? end : fmt::format("{}; {}", out.text, end);
  }
  out.skipped = end.empty() && out.text.starts_with("skip: ");
  out.passed = out.text.empty();
  return out;
}

}  // namespace isthmus::net_plugin
