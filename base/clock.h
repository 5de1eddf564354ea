#pragma once

#include <cstdint>
#include <limits>

namespace isthmus {

// Nanoseconds of CLOCK_MONOTONIC; about 20 ns a call, so never on a fast path.
std::int64_t monotonic_ns();

// A point in time after which a wait gives up. Saturates: "36500 days" is as good as never.
class Deadline {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  Deadline() = default;

  explicit Deadline(std::int64_t at_ns) : at_ns_(at_ns) {}

  static Deadline after_ns(std::int64_t now_ns, std::int64_t timeout_ns) {
    return Deadline(timeout_ns >= kNever - now_ns ? kNever : now_ns + timeout_ns);
  }

  static Deadline after_ms(std::int64_t timeout_ms) {
    constexpr std::int64_t kNsPerMs = 1'000'000;
    return after_ns(monotonic_ns(),
                    timeout_ms > kNever / kNsPerMs ? kNever : timeout_ms * kNsPerMs);
  }

  std::int64_t at_ns() const { return at_ns_; }

  bool passed(std::int64_t now_ns) const { return now_ns >= at_ns_; }

  std::int64_t left_ms(std::int64_t now_ns) const {
    return at_ns_ == kNever ? kNever / 1'000'000
                            : (at_ns_ > now_ns ? (at_ns_ - now_ns) / 1'000'000 : 0);
  }

 private:
  std::int64_t at_ns_ = kNever;
};

// Tells the processor that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace isthmus
