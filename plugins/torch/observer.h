#pragma once

// Included by shim.cc only: who is told of a group's operations beside their callers.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <ratio>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "plugins/torch/flight_recorder.h"
#include "plugins/torch/job.h"
#include "plugins/torch/worlds.h"

namespace isthmus::plugin {

// Counts, times and records the operations of one group, once somebody asked for that: a completion
// hook of the user's, getDuration(), or the flight recorder. Nobody is told of operations that were
// issued before.
// Thread rule: any thread; end() must not be called with a lock that the hook may need.
class Observer {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  using Clock = decltype(c10d::WorkInfo::timeStarted)::clock;  // torch 2.8 and 2.9: system_clock

  // `backend` is alive whenever an operation begins.
  Observer(const c10d::Backend& backend, const std::shared_ptr<Group>& group)
      : backend_(backend), records_(flight_recorder_wanted()), active_(records_) {
    static std::atomic<std::size_t> groups{0};
    title_.id = groups.fetch_add(1, std::memory_order_relaxed);
    timeout_ = milliseconds(group->whole().timeout_ms());
    for (const int rank : group->whole().world_ranks()) {
      world_ranks_.push_back(static_cast<std::uint64_t>(rank));
    }
  }

  // While false, operations need not be announced.
  bool active() const { return active_.load(std::memory_order_acquire); }

  // The hook runs after each operation, failed ones included, on a thread of ours or the caller's.
  void set_hook(std::shared_ptr<Hook> hook) {
    const std::lock_guard lock(mutex_);
    hook_ = std::move(hook);
    active_.store(true, std::memory_order_release);
  }

  void enable_timing() { active_.store(true, std::memory_order_release); }

  struct Begun {
    std::uint64_t sequence = 0;  // among the group's collectives, or messages, from 1
    std::unique_ptr<FlightRecord> record;
  };

  Begun begin(const Job& job) {
    FlightRecord::Counts counts;
    Begun begun;
    {
      const std::lock_guard lock(mutex_);
      ++running_;
      ++counts_.operations;
      begun.sequence = ++(is_message(job.type) ? counts_.messages : counts_.collectives);
      counts = counts_;
      if (!is_message(job.type)) {
        status_->lastEnqueuedSeq = status_->lastStartedSeq =
            static_cast<std::int64_t>(begun.sequence);
      }
    }
    // Without our lock: a record takes Python's, for the call stack.
    if (records_) {
      std::call_once(introduced_, [this] { introduce(); });
      begun.record =
          std::make_unique<FlightRecord>(title_, counts, job, backend_.getRank(),
                                         job.timeout.count() > 0 ? job.timeout : timeout_, status_);
    }
    return begun;
  }

  void end(const std::shared_ptr<c10d::WorkInfo>& info) {
    std::shared_ptr<Hook> hook;
    {
      const std::lock_guard lock(mutex_);
      hook = hook_;
      if (!is_message(info->opType)) {
        status_->lastCompletedSeq =
            std::max(status_->lastCompletedSeq, static_cast<std::int64_t>(info->seq));
      }
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
  // The group has its name only after it was made.
  void introduce() {
    title_.name = {backend_.getGroupUid(), backend_.getGroupDesc()};
    FlightRecorder::get()->record_pg_ranks(title_.name, world_ranks_);
  }

  const c10d::Backend& backend_;
  const bool records_;
  std::atomic<bool> active_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::shared_ptr<Hook> hook_;
  FlightRecord::Counts counts_;
  std::int64_t running_ = 0;
  std::once_flag introduced_;
  GroupTitle title_;
  milliseconds timeout_{0};
  std::vector<std::uint64_t> world_ranks_;
  const std::shared_ptr<c10d::ProcessGroupStatus> status_ =
      std::make_shared<c10d::ProcessGroupStatus>();
};

// One operation that an observer follows, from its issue to end(), which comes also when the
// operation could not start.
class Observation {
 public:
  Observation(std::shared_ptr<Observer> observer, const Job& job)
      : observer_(std::move(observer)),
        type_(job.type),
        begin_(Observer::Clock::now()),
        begun_(observer_->begin(job)) {}

  Observation(Observation&& other) noexcept = default;
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
  Observation& operator=(Observation&&) = delete;

  ~Observation() { end(); }

  // The operation is done; the first call counts.
  void stop() {
    if (end_ == Observer::Clock::time_point()) {
      end_ = Observer::Clock::now();
      if (begun_.record != nullptr) {
        begun_.record->done();
      }
    }
  }

  // Tells the observer.
  void end() {
    if (observer_ == nullptr) {
      return;
    }
    stop();
    std::exchange(observer_, nullptr)
        ->end(
            std::make_shared<c10d::WorkInfo>(type_, begun_.sequence, begin_, end_, end_ - begin_));
  }

  // From the issue to stop().
  float milliseconds() const {
    return std::chrono::duration<float, std::milli>(end_ - begin_).count();
  }

 private:
  std::shared_ptr<Observer> observer_;
  OpType type_;
  Observer::Clock::time_point begin_;
  Observer::Clock::time_point end_;
  Observer::Begun begun_;
};

}  // namespace isthmus::plugin
