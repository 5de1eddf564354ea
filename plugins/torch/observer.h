#pragma once

// Included by shim.cc only: who is told of a group's operations beside their callers.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <ratio>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace isthmus::plugin {

// Counts and times the operations of one group, once somebody asked for that: a completion hook of
// the user's, or getDuration(). Nobody is told of operations that were issued before.
// Thread rule: any thread; end() must not be called with a lock that the hook may need.
class Observer {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  using Clock = std::chrono::steady_clock;

  // While false, operations need not be announced.
  bool active() const { return active_.load(std::memory_order_acquire); }

  // The hook runs after each operation, failed ones included, on a thread of ours or the caller's.
  void set_hook(std::shared_ptr<Hook> hook) {
    const std::lock_guard lock(mutex_);
    hook_ = std::move(hook);
    active_.store(true, std::memory_order_release);
  }

  void enable_timing() { active_.store(true, std::memory_order_release); }

  // An operation begins; the count of its kind, from 1.
  std::uint64_t begin(bool point_to_point) {
    const std::lock_guard lock(mutex_);
    ++running_;
    return ++(point_to_point ? messages_ : collectives_);
  }

  void end(const std::shared_ptr<c10d::WorkInfo>& info) {
    std::shared_ptr<Hook> hook;
    {
      const std::lock_guard lock(mutex_);
      hook = hook_;
    }
    if (hook != nullptr) {
      try {
        (*hook)(info);
      } catch (const std::exception& error) {
        TORCH_WARN("isthmus: a completion hook raised, and the job goes on: ", error.what());
      }
      hook.reset();
    }
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) {
      idle_.notify_all();
    }
  }

  // Until every operation has ended and its hook returned. Operations have deadlines of their own.
  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  std::atomic<bool> active_{false};
  std::mutex mutex_;
  std::condition_variable idle_;
  std::shared_ptr<Hook> hook_;
  std::uint64_t collectives_ = 0;
  std::uint64_t messages_ = 0;
  std::int64_t running_ = 0;
};

// One operation that an observer follows, from its issue to end(), which comes also when the
// operation could not start.
class Observation {
 public:
  Observation(std::shared_ptr<Observer> observer, c10d::OpType type, bool point_to_point)
      : observer_(std::move(observer)),
        type_(type),
        sequence_(observer_->begin(point_to_point)),
        begin_(Observer::Clock::now()) {}

  Observation(Observation&& other) noexcept = default;
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
  Observation& operator=(Observation&&) = delete;

  ~Observation() { end(); }

  // The operation is done; the first call counts.
  void stop() {
    if (end_ == Observer::Clock::time_point()) {
      end_ = Observer::Clock::now();
    }
  }

  // Tells the observer.
  void end() {
    if (observer_ == nullptr) {
      return;
    }
    stop();
    std::exchange(observer_, nullptr)
        ->end(std::make_shared<c10d::WorkInfo>(type_, sequence_, begin_, end_, end_ - begin_));
  }

  // From the issue to stop().
  float milliseconds() const {
    return std::chrono::duration<float, std::milli>(end_ - begin_).count();
  }

 private:
  std::shared_ptr<Observer> observer_;
  c10d::OpType type_;
  std::uint64_t sequence_;
  Observer::Clock::time_point begin_;
  Observer::Clock::time_point end_;
};

}  // namespace isthmus::plugin
