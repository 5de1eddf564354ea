#include "schedule/baton.h"

#include <sched.h>

#include "base/clock.h"
#include "base/futex.h"

namespace isthmus {
namespace {

constexpr int kSpins = 200;
constexpr int kYields = 20;
constexpr std::int64_t kSleepNs = 1'000'000;

}  // namespace

void Baton::acquire_slow() {
  contenders_.fetch_add(1, std::memory_order_relaxed);
  for (int looks = 0; !try_acquire(); ++looks) {
    if (looks < kSpins) {
      cpu_relax();
    } else if (looks < kSpins + kYields) {
      ::sched_yield();
    } else {
      futex_wait(state_, 1, kSleepNs);
    }
  }
  contenders_.fetch_sub(1, std::memory_order_relaxed);
}

void Baton::release_slow() {
  futex_wake_one(state_);
}

}  // namespace isthmus
