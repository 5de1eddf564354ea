#pragma once

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace isthmus::limits {

// What a rank does while another rank's flag has not arrived.
struct Waiting {
  enum class Idle { kSpin, kPause, kYield, kSleep, kFutex };

  Idle idle = Idle::kSpin;
  int looks = INT_MAX;  // Looks at the flag before it idles once (kYield, kSleep, kFutex).
};

// A counter that one rank writes and all others read; one line (two with adjacent-line prefetch).
struct alignas(128) Flag {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

// What one measurement is: median, least and most of `reps` repetitions of `calls` calls.
struct Times {
  double median_us = 0;
  double least_us = 0;
  double most_us = 0;
  int calls = 0;
};

// A group of processes on this machine, forked from one parent, pinned round robin, that share
// memory mapped before the fork. Every process is single-threaded. A watchdog (SIGALRM) ends each
// process after `kWatchdogSeconds`, and children die with their parent, so no wait is endless.
class Team {
 public:
  static constexpr int kMostRanks = 16;
  static constexpr unsigned kWatchdogSeconds = 300;
  static constexpr int kRepetitions = 7;

  Team(int size, Waiting waiting);

  // Memory that all ranks will see at the same address; only before fork().
  static std::byte* share(std::size_t bytes);

  // Memory of this process alone.
  static std::byte* own(std::size_t bytes, bool huge);

  // Splits into `size` processes. The parent is the last rank; it reports and reaps.
  void fork();

  // Waits for the children (in the parent) or ends the process (in a child).
  void join();

  int rank() const { return rank_; }

  int size() const { return size_; }

  bool reports() const { return rank_ == size_ - 1; }

  // True when ranks outnumber processors.
  bool crowded() const { return crowded_; }

  // A barrier made of one flag a rank.
  void meet();

  void post(Flag* flag, std::uint32_t value) const;

  // Returns once `flag` has reached `value` (modulo 2^32).
  void wait(Flag* flag, std::uint32_t value) const {
    int looks = 0;
    while (static_cast<std::int32_t>(flag->value.load(std::memory_order_acquire) - value) < 0) {
      if (waiting_.idle == Waiting::Idle::kSpin) {
        continue;
      }
      idle(flag, &looks);
    }
  }

  // The same for a condition that is no Flag.
  template <typename Ready>
  void until(Ready ready) const {
    int looks = 0;
    while (!ready()) {
      if (waiting_.idle != Waiting::Idle::kSpin) {
        idle(nullptr, &looks);
      }
    }
  }

  // Times `call`: every repetition is a barrier and then the calls, its time the largest over the
  // ranks. With `touch`, each call is timed apart, after a barrier, on data just rewritten by it.
  Times measure(const std::function<void()>& call, const std::function<void()>& touch);

 private:
  struct Control {
    Flag meeting[kMostRanks];
    double us[kMostRanks];
  };

  void idle(Flag* flag, int* looks) const;
  double timed(int calls, const std::function<void()>& call, const std::function<void()>& touch);

  int rank_ = 0;
  int size_ = 1;
  bool crowded_ = false;
  Waiting waiting_;
  Control* control_ = nullptr;
  std::uint32_t meeting_ = 0;
};

}  // namespace isthmus::limits
