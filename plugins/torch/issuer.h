#pragma once

// Included by shim.cc only: how a call of the backend runs.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "plugins/torch/job.h"
#include "plugins/torch/observer.h"
#include "plugins/torch/store.h"
#include "plugins/torch/work.h"
#include "plugins/torch/work_group.h"
#include "plugins/torch/worlds.h"

namespace isthmus::plugin {

// What torch.profiler shows of a call that leaves no work.
inline const char* range_name(OpKind op) {
  constexpr std::array<const char*, kOpKindCount> kNames = {
      "isthmus:barrier",   "isthmus:all_reduce", "isthmus:all_gather", "isthmus:reduce_scatter",
      "isthmus:broadcast", "isthmus:send",       "isthmus:recv",       "isthmus:reduce",
      "isthmus:gather",    "isthmus:scatter",    "isthmus:all_to_all", "isthmus:reduce_shards"};
  return kNames.at(static_cast<std::size_t>(op));
}

// Runs the calls of one group: on the caller's thread, which leaves no work behind, or as a work.
// Thread rule: any thread, without Python's lock.
class Issuer {
 public:
  Issuer(const c10d::Backend& backend, std::shared_ptr<Group> group, Priority priority)
      : group_(std::move(group)),
        priority_(priority),
        observer_(std::make_shared<Observer>(backend, group_)) {}

  Observer& observer() { return *observer_; }

  Gatherer& gatherer() { return gatherer_; }

  // True when a call needs no job: it leaves no work, and nobody is to be told of it.
  bool runs_inline(bool async) const { return !async && !observer_->active(); }

  WorkPtr run(const Call& call, milliseconds timeout) {
    return run(call, CallOptions{.timeout_ms = limit(timeout), .priority = priority_});
  }

  WorkPtr run(const Call& call, CallOptions options) {
    if (forked()) [[unlikely]] {
      refuse_forked();
    }
    RECORD_USER_SCOPE(range_name(call.op));
    Interrupt interrupt;
    options.keep_waiting = [&interrupt] { return interrupt.keep_waiting(); };
    const Status status = group_->run(call, options);
    interrupt.rethrow();
    if (!status.ok()) [[unlikely]] {
      raise(status.error());
    }
    return {};
  }

  // The job's collectives, in order.
  WorkPtr issue(Job job) {
    if (!job.async) {
      const std::optional<Observation> observation = observe(job);
      for (const Call& call : job.calls) {
        run(call, options_of(job));
      }
      copy_all(job.copies);
      return {};
    }
    const std::vector<Call> calls = std::move(job.calls);
    const CallOptions options = options_of(job);
    return issue(std::move(job), [&](Communicator& communicator, WorkIsthmus& work) {
      for (const Call& call : calls) {
        work.add(taken(communicator.start(call, options)));
      }
    });
  }

  // Starts the parts of a job: start(communicator, work) adds them to the work. When one cannot
  // start, those before it run on with their memory.
  template <typename Start>
  WorkPtr issue(Job job, Start start) {
    if (forked()) [[unlikely]] {
      refuse_forked();
    }
    const bool async = job.async;
    std::optional<Observation> observation = observe(job);
    Communicator& communicator = taken(group_->current());
    auto work = c10::make_intrusive<WorkIsthmus>(group_, communicator, std::move(job));
    if (observation.has_value()) {
      work->observe(*std::move(observation));
    }
    start(communicator, *work);
    work->started();
    if (!async) {
      work->finish_call();
      return {};
    }
    gatherer_.add(work);
    return work;
  }

  CallOptions options_of(const Job& job) const {
    return {.timeout_ms = limit(job.timeout), .priority = job.priority.value_or(priority_)};
  }

  static WorkRef taken(Result<WorkRef> result) {
    if (!result.ok()) {
      raise(result.error());
    }
    return std::move(result).value();
  }

 private:
  static std::int64_t limit(milliseconds timeout) {
    return timeout.count() > 0 ? timeout.count() : -1;
  }

  static Communicator& taken(const Result<Communicator*>& result) {
    if (!result.ok()) {
      raise(result.error());
    }
    return *result.value();
  }

  [[noreturn]] static void refuse_forked() {
    refuse(Code::kUnsupported,
           "This process was forked from a rank of isthmus and is no rank itself: "
           "communicate in the parent, or start workers with spawn.");
  }

  std::optional<Observation> observe(const Job& job) const {
    if (!observer_->active()) [[likely]] {
      return std::nullopt;
    }
    return std::make_optional<Observation>(observer_, job);
  }

  const std::shared_ptr<Group> group_;
  const Priority priority_;
  const std::shared_ptr<Observer> observer_;
  Gatherer gatherer_;
};

}  // namespace isthmus::plugin
