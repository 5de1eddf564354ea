#include "tools/launch/launch.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>
#include <vector>

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/temp_folder.h"
#include "tools/command_line/command_line.h"

namespace isthmus {
namespace {

// How long ranks may live on after another one failed: they name it within 2 s.
constexpr std::int64_t kGraceMs = 5000;
constexpr std::int64_t kLookEveryMs = 200;

// Counted up by the ranks, watched by the parent.
struct Counters {
  std::atomic<std::uint64_t> alive{0};
  std::atomic<std::int32_t> joined{0};
};

struct Unmap {
  void operator()(Counters* counters) const { ::munmap(counters, sizeof(Counters)); }
};

std::unique_ptr<Counters, Unmap> shared_counters() {
  void* memory =
      ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  return std::unique_ptr<Counters, Unmap>(new (memory) Counters);
}

class Family {
 public:
  Family(int ranks, int stall_s, Counters& counters)
      : stall_ns_(std::int64_t{stall_s} * 1'000'000'000), counters_(counters) {
    pids_.resize(static_cast<std::size_t>(ranks), 0);
  }

  bool fork_all(const TempFolder& store, const std::function<int(const Member&)>& body);

  // Waits for all; the exit code for the whole.
  int wait(TempFolder* store);

  void kill_all() {
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        ::kill(pid, SIGKILL);
      }
    }
  }

 private:
  [[noreturn]] void child(int rank, const std::string& store, pid_t parent,
                          const std::function<int(const Member&)>& body);
  void reap();
  void note_end(std::size_t rank, int status);

  std::int64_t stall_ns_;
  Counters& counters_;
  std::vector<pid_t> pids_;  // by rank; 0 once it has ended
  std::size_t living_ = 0;
  bool failed_ = false;
  Deadline kill_at_;
};

void Family::child(int rank, const std::string& store, pid_t parent,
                   const std::function<int(const Member&)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(kExitFailed);  // The parent died before the line above.
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  Member member;
  member.rank = rank;
  member.size = static_cast<int>(pids_.size());
  member.store = store;
  member.joined = [this] { counters_.joined.fetch_add(1, std::memory_order_relaxed); };
  member.alive = [this] { counters_.alive.fetch_add(1, std::memory_order_relaxed); };
  const int code = body(member);
  std::fflush(stdout);
  std::fflush(stderr);
  // No destructors of what the parent owns.
  ::_exit(code);
}

bool Family::fork_all(const TempFolder& store, const std::function<int(const Member&)>& body) {
  // Blocked, so that wait() can sleep until a child ends.
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child_ended, nullptr);
  std::fflush(stdout);
  std::fflush(stderr);
  const pid_t parent = ::getpid();
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      child(static_cast<int>(rank), store.path(), parent, body);
    }
    if (pid < 0) {
      fmt::print(stderr, "cannot start rank {}: fork: {} (errno {})\n", rank, std::strerror(errno),
                 errno);
      kill_all();
      return false;
    }
    pids_[rank] = pid;
    ++living_;
  }
  return true;
}

void Family::note_end(std::size_t rank, int status) {
  pids_[rank] = 0;
  --living_;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return;
  }
  if (WIFSIGNALED(status)) {
    fmt::print(stderr, "rank {} was ended by signal {} ({})\n", rank, WTERMSIG(status),
               ::strsignal(WTERMSIG(status)));
  }
  if (!failed_) {
    failed_ = true;
    kill_at_ = Deadline::after_ms(kGraceMs);
  }
}

void Family::reap() {
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    int status = 0;
    if (pids_[rank] > 0 && ::waitpid(pids_[rank], &status, WNOHANG) == pids_[rank]) {
      note_end(rank, status);
    }
  }
}

int Family::wait(TempFolder* store) {
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  std::uint64_t alive = 0;
  Deadline stalled = Deadline::after_ns(monotonic_ns(), stall_ns_);
  bool killed = false;
  while (living_ > 0) {
    const timespec look{.tv_sec = 0, .tv_nsec = kLookEveryMs * 1'000'000};
    // Its answer says only that it is time to look.
    ::sigtimedwait(&child_ended, nullptr, &look);
    reap();
    if (counters_.joined.load(std::memory_order_relaxed) == static_cast<int>(pids_.size())) {
      store->remove();
    }
    const std::int64_t now = monotonic_ns();
    const std::uint64_t beats = counters_.alive.load(std::memory_order_relaxed);
    if (beats != alive) {
      alive = beats;
      stalled = Deadline::after_ns(now, stall_ns_);
    }
    if (killed || living_ == 0 || !(kill_at_.passed(now) || stalled.passed(now))) {
      continue;
    }
    if (!failed_) {
      fmt::print(stderr,
                 "no rank did anything for {} s: ending all (--stall changes this; `isthmus "
                 "status` shows who waits for whom)\n",
                 stall_ns_ / 1'000'000'000);
      failed_ = true;
    }
    kill_all();
    killed = true;
  }
  return failed_ ? kExitFailed : 0;
}

}  // namespace

int launch(int ranks, int stall_s, const std::function<int(const Member&)>& body) {
  const std::unique_ptr<Counters, Unmap> counters = shared_counters();
  if (counters == nullptr) {
    fmt::print(stderr, "cannot start ranks: no shared page: {} (errno {})\n", std::strerror(errno),
               errno);
    return kExitFailed;
  }
  Result<TempFolder> store = TempFolder::create("ranks");
  if (!store.ok()) {
    fmt::print(stderr, "cannot start ranks: {}\n", store.error().message);
    return kExitFailed;
  }
  Family family(ranks, stall_s, *counters);
  if (!family.fork_all(*store, body)) {
    return kExitFailed;
  }
  return family.wait(&*store);
}

bool pin_round_robin(int index) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return false;
  }
  const int wanted = index % std::max(CPU_COUNT(&allowed), 1);
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    const std::size_t number = static_cast<std::size_t>(cpu);
    if (CPU_ISSET(number, &allowed) && seen++ == wanted) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(number, &one);
      return ::sched_setaffinity(0, sizeof one, &one) == 0;
    }
  }
  return false;
}

}  // namespace isthmus
