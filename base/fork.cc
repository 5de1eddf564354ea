#include "base/fork.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include <pthread.h>
#include <unistd.h>

namespace isthmus {
namespace {

// One bit per descriptor. Descriptors past this bound are not closed in the child; RLIMIT_NOFILE
// is rarely raised beyond it, and close-on-exec still covers exec.
constexpr int kDescriptorsMax = 1 << 16;
constexpr int kBits = 64;

std::array<std::atomic<std::uint64_t>, kDescriptorsMax / kBits>& listed() {
  static std::array<std::atomic<std::uint64_t>, kDescriptorsMax / kBits> bits{};
  return bits;
}

std::atomic<bool>& dead() {
  static std::atomic<bool> flag{false};
  return flag;
}

void in_child() {
  dead().store(true, std::memory_order_relaxed);
  int base = 0;
  for (std::atomic<std::uint64_t>& word : listed()) {
    std::uint64_t bits = word.exchange(0, std::memory_order_relaxed);
    while (bits != 0) {
      ::close(base + __builtin_ctzll(bits));
      bits &= bits - 1;
    }
    base += kBits;
  }
}

}  // namespace

void install_fork_handlers() {
  static std::once_flag once;
  std::call_once(once, [] { ::pthread_atfork(nullptr, nullptr, in_child); });
}

bool forked_child() {
  return dead().load(std::memory_order_relaxed);
}

void list_descriptor(int fd) {
  if (fd >= 0 && fd < kDescriptorsMax) {
    listed()[static_cast<std::size_t>(fd / kBits)].fetch_or(1ULL << (fd % kBits),
                                                            std::memory_order_relaxed);
  }
}

void unlist_descriptor(int fd) {
  if (fd >= 0 && fd < kDescriptorsMax) {
    listed()[static_cast<std::size_t>(fd / kBits)].fetch_and(~(1ULL << (fd % kBits)),
                                                             std::memory_order_relaxed);
  }
}

}  // namespace isthmus
