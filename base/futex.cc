#include "base/futex.h"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace isthmus {
namespace {

constexpr std::int64_t kNsPerSecond = 1'000'000'000;

void wake(const std::atomic<std::uint32_t>& word, int count) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::int64_t timeout_ns) {
  timespec limit{.tv_sec = timeout_ns / kNsPerSecond, .tv_nsec = timeout_ns % kNsPerSecond};
  // Every outcome (woken, changed, timed out, interrupted) means: look again.
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, &limit, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  wake(word, INT_MAX);
}

void futex_wake_one(const std::atomic<std::uint32_t>& word) {
  wake(word, 1);
}

}  // namespace isthmus
