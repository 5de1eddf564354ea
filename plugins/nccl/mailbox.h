#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "plugins/nccl/frame.h"

namespace isthmus::nccl {

// A connection that said a good hello and got its welcome.
struct Arrival {
  Fd fd;
  Hello hello;
};

// Where the listener's thread leaves further connections of one comm. Shared by the listener (which
// forgets it when the comm is gone) and the comm; any thread.
class Mailbox {
 public:
  void put(Arrival arrival) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (arrivals_.size() < kArrivalsMax) {
      arrivals_.push_back(std::move(arrival));
      any_.store(true, std::memory_order_release);
    }
  }

  bool any() const { return any_.load(std::memory_order_acquire); }

  std::vector<Arrival> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(arrivals_, {});
  }

 private:
  // A comm has at most 16 flows; one that does not look for them holds no more descriptors.
  static constexpr std::size_t kArrivalsMax = 32;

  std::mutex mutex_;
  std::vector<Arrival> arrivals_;
  std::atomic<bool> any_{false};
};

}  // namespace isthmus::nccl
