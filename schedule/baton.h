#pragma once

#include <atomic>
#include <cstdint>

namespace isthmus {

// The right to drive an engine (design: "token"): a lock whose uncontended cost is one exchange,
// and whose waiters spin briefly, then sleep on a futex for at most a millisecond at a time. Not
// recursive. Thread rule: any thread.
class Baton {
 public:
  bool try_acquire() {
    return state_.load(std::memory_order_relaxed) == 0 &&
           state_.exchange(1, std::memory_order_acquire) == 0;
  }

  void acquire() {
    if (!try_acquire()) {
      acquire_slow();
    }
  }

  void release() {
    state_.store(0, std::memory_order_release);
    if (contenders_.load(std::memory_order_relaxed) != 0) {
      release_slow();
    }
  }

  // Somebody waits: the holder gives way after a bounded number of passes.
  bool contended() const { return contenders_.load(std::memory_order_relaxed) != 0; }

 private:
  void acquire_slow();
  void release_slow();

  std::atomic<std::uint32_t> state_{0};
  std::atomic<std::uint32_t> contenders_{0};
};

// Holds the baton for a scope.
class BatonGuard {
 public:
  explicit BatonGuard(Baton& baton) : baton_(baton) { baton_.acquire(); }

  ~BatonGuard() { baton_.release(); }

  BatonGuard(const BatonGuard&) = delete;
  BatonGuard& operator=(const BatonGuard&) = delete;

 private:
  Baton& baton_;
};

}  // namespace isthmus
