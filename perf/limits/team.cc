#include "perf/limits/team.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

namespace isthmus::limits {
namespace {

constexpr double kTargetUs = 8000;  // What one repetition should take.
constexpr double kMostCalls = 20000;

double now_us() {
  using std::chrono::duration;
  return duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "limits: %s: %s\n", what, std::strerror(errno));
  _exit(1);
}

std::byte* map(std::size_t bytes, int flags, bool huge) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    fail("mmap");
  }
  // Only a wish: without huge pages, or with them, the program still runs.
  madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return static_cast<std::byte*>(p);
}

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    fail("sched_setaffinity");
  }
}

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value) {
  return syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

Team::Team(int size, Waiting waiting)
    : size_(size), crowded_(size > sysconf(_SC_NPROCESSORS_ONLN)), waiting_(waiting) {
  control_ = new (share(sizeof(Control))) Control{};
}

std::byte* Team::share(std::size_t bytes) {
  return map(bytes, MAP_SHARED, true);
}

std::byte* Team::own(std::size_t bytes, bool huge) {
  return map(bytes, MAP_PRIVATE, huge);
}

void Team::fork() {
  const int cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const pid_t parent = getpid();
  for (rank_ = 0; rank_ < size_ - 1; ++rank_) {
    pin(rank_ % cpus);  // Before the fork: a child must not start behind a spinning FIFO parent.
    const pid_t child = ::fork();
    if (child < 0) {
      fail("fork");
    }
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) {
        _exit(1);
      }
      break;
    }
  }
  pin(rank_ % cpus);
  alarm(kWatchdogSeconds);
}

void Team::join() {
  std::fflush(stdout);
  if (!reports()) {
    _exit(0);
  }
  while (::wait(nullptr) > 0) {
  }
}

void Team::meet() {
  post(&control_->meeting[rank_], ++meeting_);
  for (int k = 1; k < size_; ++k) {
    wait(&control_->meeting[(rank_ + k) % size_], meeting_);
  }
}

void Team::post(Flag* flag, std::uint32_t value) const {
  flag->value.store(value, std::memory_order_release);
  if (waiting_.idle == Waiting::Idle::kFutex) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (flag->sleepers.load(std::memory_order_relaxed) != 0) {
      futex(&flag->value, FUTEX_WAKE, INT_MAX);
    }
  }
}

void Team::idle(Flag* flag, int* looks) const {
  if (waiting_.idle == Waiting::Idle::kPause || ++*looks <= waiting_.looks) {
    cpu_relax();
    return;
  }
  *looks = 0;
  if (waiting_.idle == Waiting::Idle::kSleep) {
    const timespec shortest{0, 1};
    nanosleep(&shortest, nullptr);
  } else if (waiting_.idle == Waiting::Idle::kFutex && flag != nullptr) {
    const std::uint32_t seen = flag->value.load(std::memory_order_acquire);
    flag->sleepers.fetch_add(1);
    const timespec longest{0, 1'000'000};  // A value that arrived between the looks is no loss.
    syscall(SYS_futex, &flag->value, FUTEX_WAIT, seen, &longest, nullptr, 0);
    flag->sleepers.fetch_sub(1);
  } else {
    sched_yield();
  }
}

double Team::timed(int calls, const std::function<void()>& call,
                   const std::function<void()>& touch) {
  double us = 0;
  const int step = touch ? 1 : calls;
  for (int i = 0; i < calls; i += step) {
    if (touch) {
      touch();
    }
    meet();
    us -= now_us();
    for (int j = 0; j < step; ++j) {
      call();
    }
    us += now_us();
  }
  control_->us[rank_] = us / calls;
  meet();
  const double slowest = *std::max_element(control_->us, control_->us + size_);
  meet();
  return slowest;
}

Times Team::measure(const std::function<void()>& call, const std::function<void()>& touch) {
  double once = timed(2, call, touch);
  for (int i = 0; i < 2; ++i) {
    once = std::min(once, timed(2, call, touch));
  }
  const int calls = static_cast<int>(std::clamp(kTargetUs / once, 1.0, kMostCalls));
  std::array<double, kRepetitions> us{};
  for (double& one : us) {
    one = timed(calls, call, touch);
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us.front(), us.back(), calls};
}

}  // namespace isthmus::limits
