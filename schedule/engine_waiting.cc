// How the engine waits: spin, yield, sleep; and the driver thread.

#include <algorithm>
#include <array>
#include <cerrno>

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/futex.h"
#include "base/log.h"
#include "schedule/engine.h"

namespace isthmus {
namespace {

// Looks before the clock is asked for the first time.
constexpr std::uint32_t kLooksFree = 256;
constexpr std::uint32_t kLooksCrowded = 4;

// Yields of a crowded rank before it sleeps: long enough for its peers to have a turn each.
constexpr std::int64_t kCrowdedSpinNs = 300'000;

// Passes that moved something between two looks at the clock: others' progress must not keep a
// waiter from its time limit.
constexpr std::uint32_t kMovesPerLook = 256;

// Between two slow looks at deadlines, failures and liveness.
constexpr std::int64_t kCheckEveryNs = 1'000'000;

// Most that a sleep lasts. A ring may be missed, so a sleep is at first short; who has waited for
// long loses no more than an eighth of that, and leaves the processor alone.
constexpr std::int64_t kSleepMs = 1;
constexpr std::int64_t kLongSleepMs = 8;

int sleep_ms(std::int64_t waited_ns) {
  return static_cast<int>(std::clamp(waited_ns / 8'000'000, kSleepMs, kLongSleepMs));
}

constexpr std::int64_t kParkNs = 100'000'000;

}  // namespace

// After a pass that moved something, for this waiter or for another.
void Engine::moved(Idle& state) {
  state.looks = 0;
  state.since_ns = 0;
  if (++state.moves % kMovesPerLook != 0) {
    return;
  }
  const std::int64_t now = monotonic_ns();
  if (now - state.checked_ns >= kCheckEveryNs) {
    state.checked_ns = now;
    check(now);
  }
}

// One step of waiting after a pass that moved nothing. Gives the token away while others want it.
void Engine::idle(Idle& state) {
  ++state.looks;
  if (baton_.contended()) {
    baton_.release();
    ::sched_yield();
    baton_.acquire();
  }
  if (state.looks < (options_.crowded ? kLooksCrowded : kLooksFree)) {
    return;
  }
  const std::int64_t now = monotonic_ns();
  if (state.since_ns == 0) {
    state.since_ns = now;
  }
  if (state.checked_ns == 0) {
    state.checked_ns = now;
  }
  if (now - state.checked_ns >= kCheckEveryNs) {
    state.checked_ns = now;
    check(now);
    return;
  }
  const std::int64_t spin = options_.crowded ? kCrowdedSpinNs : options_.spin_ns;
  if (now - state.since_ns < spin) {
    if (options_.crowded) {
      baton_.release();
      ::sched_yield();
      baton_.acquire();
    } else {
      cpu_relax();
    }
    return;
  }
  sleep(sleep_ms(now - state.since_ns));
}

Status Engine::open_sleeper() {
  Fd sleeper(::epoll_create1(EPOLL_CLOEXEC));
  if (!sleeper.valid()) {
    return system_error(Code::kResource, errno, "cannot make an epoll descriptor");
  }
  std::vector<int> fds;
  for (Transport* transport : transports_) {
    transport->wait_descriptors(&fds);
  }
  fds.push_back(node_->bell_fd());
  node_->wait_descriptors(&fds);
  for (const int fd : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    // EEXIST: the shared-memory transport names the node's descriptors too.
    if (::epoll_ctl(sleeper.get(), EPOLL_CTL_ADD, fd, &event) != 0 && errno != EEXIST) {
      return system_error(Code::kResource, errno, "cannot watch a descriptor");
    }
  }
  sleeper_ = std::move(sleeper);
  return {};
}

// A dead rank's pidfd stays readable: no sleep would last.
void Engine::forget_life(int world_rank) {
  const int fd = node_->life_of(world_rank);
  // ENOENT: dead before the sleeper was opened.
  if (sleeper_.valid() && fd >= 0 && ::epoll_ctl(sleeper_.get(), EPOLL_CTL_DEL, fd, nullptr) != 0 &&
      errno != ENOENT) {
    log(LogLevel::kWarn, "engine", "{}",
        system_error(Code::kResource, errno, "cannot watch a descriptor no more").message);
  }
}

// Sleeps until somebody rings, a transport has something, a peer dies, or the time has passed.
// Without the token.
void Engine::sleep(int most_ms) {
  if (!sleeper_.valid()) {
    if (const Status opened = open_sleeper(); !opened.ok()) {
      log(LogLevel::kWarn, "engine", "{}; waiting by polling", opened.error().message);
    }
  }
  Bell& bell = node_->own().header().bell;
  bell.sleeping.fetch_add(1, std::memory_order_seq_cst);
  // What was published before the flag could be seen.
  if (!progress()) {
    std::array<epoll_event, 4> events{};
    const int fd = sleeper_.get();
    baton_.release();
    if (fd >= 0) {
      ::epoll_wait(fd, events.data(), static_cast<int>(events.size()), most_ms);
    } else {
      ::poll(nullptr, 0, most_ms);
    }
    baton_.acquire();
  }
  bell.sleeping.fetch_sub(1, std::memory_order_seq_cst);
  node_->drain_bell();
}

void Engine::ensure_driver() {
  std::call_once(driver_once_, [this] { driver_ = std::thread([this] { driver_main(); }); });
}

void Engine::wake_driver() {
  if (outstanding_.load(std::memory_order_relaxed) != 0 || stop_.load(std::memory_order_relaxed)) {
    driver_bell_.fetch_add(1, std::memory_order_release);
    futex_wake_one(driver_bell_);
  }
}

// Drives asynchronous work while no caller does. Between works it only helps notices to leave: a
// peer may be met for the first time by one, and may come late.
void Engine::driver_main() {
  enter_own_thread();
  while (!stop_.load(std::memory_order_relaxed)) {
    const std::uint32_t bell = driver_bell_.load(std::memory_order_acquire);
    if (outstanding_.load(std::memory_order_relaxed) == 0 ||
        callers_.load(std::memory_order_relaxed) != 0) {
      futex_wait(
          driver_bell_, bell,
          outstanding_.load(std::memory_order_relaxed) == 0 ? kParkNs : kSleepMs * 1'000'000);
      if (told_.load(std::memory_order_relaxed) && baton_.try_acquire()) {
        poll_transports();
        baton_.release();
      }
      continue;
    }
    const BatonGuard guard(baton_);
    Idle state;
    while (outstanding_.load(std::memory_order_relaxed) != 0 &&
           callers_.load(std::memory_order_relaxed) == 0 &&
           !stop_.load(std::memory_order_relaxed)) {
      if (progress()) {
        moved(state);
        if (baton_.contended()) {
          baton_.release();
          ::sched_yield();
          baton_.acquire();
        }
      } else {
        idle(state);
      }
    }
  }
}

}  // namespace isthmus
