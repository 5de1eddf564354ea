#pragma once

// Included by shim.cc only: the Work that an asynchronous call returns.
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "plugins/torch/job.h"
#include "plugins/torch/observer.h"
#include "plugins/torch/store.h"
#include "plugins/torch/worlds.h"

namespace isthmus::plugin {

// A future whose callbacks' calls go to a communicator of their own (see Group::current()), on
// whatever thread a callback runs: torch runs it on the caller's when the future is complete
// already. Only so do the ranks agree on the order of a callback's calls: to them the callbacks of
// a communicator come in the order of its works, but between other calls of the group they come
// anywhere. What torch's own Python hooks do (PowerSGD waits for an all_reduce in a callback) would
// else be paired wrongly.
//
// With a second enable_shared_from_this pybind11 takes it for a class without one, and so does not
// look for the one of the base, from which it cannot come back: that has no virtual function.
class OrderedFuture final : public torch::jit::PythonFutureWrapper,
                            public std::enable_shared_from_this<OrderedFuture> {
 public:
  OrderedFuture(c10::intrusive_ptr<c10::ivalue::Future> future, std::shared_ptr<Group> group,
                const Communicator* communicator)
      : PythonFutureWrapper(std::move(future)),
        group_(std::move(group)),
        communicator_(communicator) {}

  std::shared_ptr<OrderedFuture> then(const py::function& callback) const {
    return std::make_shared<OrderedFuture>(plain()->then(in_order(callback))->fut, group_,
                                           communicator_);
  }

  void add_done_callback(const py::function& callback) const {
    plain()->add_done_callback(in_order(callback));
  }

 private:
  std::shared_ptr<PythonFutureWrapper> plain() const {
    return std::make_shared<PythonFutureWrapper>(fut);
  }

  py::cpp_function in_order(const py::function& callback) const {
    return py::cpp_function(
        [group = group_, communicator = communicator_, callback](const py::object& future) {
          const CallbackScope scope(communicator);
          return callback(future);
        });
  }

  std::shared_ptr<Group> group_;
  const Communicator* communicator_;  // lives in group_
};

// Order of completion: the data, then is_completed(), then the future. Whoever sees first that all
// parts are done (a waiter, a query or a completion lane) finishes the job.
class WorkIsthmus final : public c10d::Work {
 public:
  // communicator: of the group, what the parts run in.
  WorkIsthmus(std::shared_ptr<Group> group, const Communicator& communicator, Job job)
      : Work(group->whole().rank(), job.type, job.title),
        group_(std::move(group)),
        communicator_(communicator),
        job_(std::move(job)) {}

  // Memory stays alive until the engine is done with it, also when nobody waits.
  ~WorkIsthmus() override {
    if (settled_.load(std::memory_order_acquire) || forked()) {
      return;
    }

    struct Rest {
      PendingCallback pending;
      std::shared_ptr<Group> group;
      Tensors keep;
      Tensors outputs;
    };

    auto rest = std::make_shared<Rest>();
    rest->group = group_;
    rest->keep = std::move(job_.keep);
    rest->outputs = std::move(job_.outputs);
    for (const WorkRef& part : job_.parts) {
      part->on_done([rest = rest]() mutable {
        const CallbackScope scope(nullptr);
        rest.reset();
      });
    }
  }

  void add(WorkRef part) {
    group_->watch(part);
    job_.parts.push_back(std::move(part));
  }

  // Before started(): the operation is one that somebody follows.
  void observe(Observation observation) { observation_.emplace(std::move(observation)); }

  // Called once, when all parts are started.
  void started() {
    if (observation_.has_value()) {
      // Not when it settles: a hook may take Python's lock, which whoever settles may hold.
      when_done([](WorkIsthmus& self) { self.observation_->end(); });
    } else if (!job_.copies.empty() || recordFunctionEndCallback_) {
      when_done([](WorkIsthmus&) {});
    }
  }

  bool isCompleted() override {
    for (const WorkRef& part : job_.parts) {
      if (!part->done()) {
        return false;
      }
    }
    settle();
    return true;
  }

  // Ctrl-C ends the wait, not the work: it may be waited for again.
  bool wait(milliseconds timeout) override {
    Interrupt interrupt;
    wait_for_parts(timeout, interrupt);
    interrupt.rethrow();
    settle();
    if (const std::exception_ptr failed = exception()) {
      std::rethrow_exception(failed);
    }
    return true;
  }

  // The wait of a synchronous call. Nobody can wait again after Ctrl-C: the group ends.
  void finish_call() {
    Interrupt interrupt;
    wait_for_parts(kNoTimeout, interrupt);
    if (interrupt.happened()) {
      group_->abort("a synchronous call was interrupted");
      interrupt.rethrow();
    }
    wait(kNoTimeout);
  }

  void synchronize() override { wait(kNoTimeout); }

  int sourceRank() const override { return job_.parts.empty() ? -1 : job_.parts.front()->source(); }

  void abort() override { group_->abort("Work.abort() was called"); }

  Tensors result() override { return job_.outputs; }

  std::uint64_t getSequencenumber() const override {
    return job_.parts.empty() ? 0 : job_.parts.front()->sequence();
  }

  // Milliseconds from the issue until all was done; of an operation that is observed.
  float getDuration() const override {
    if (!observation_.has_value() || !settled_.load(std::memory_order_acquire)) {
      refuse(Code::kUnsupported, observation_.has_value()
                                     ? "isthmus: this work has no duration yet: wait for it first."
                                     : "isthmus: the duration of this work was not measured: call "
                                       "backend._enable_collectives_timing() before it is issued.");
    }
    return observation_->milliseconds();
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard lock(future_mutex_);
    if (future_ == nullptr) {
      const c10::TypePtr list = c10::ListType::create(c10::TensorType::get());
      future_ = c10::make_intrusive<c10::ivalue::Future>(
          job_.nested ? c10::TypePtr(c10::ListType::create(list)) : list);
      when_done([](WorkIsthmus& self) { self.complete_future(); });
    }
    return future_;
  }

  // The future as Python gets it.
  static std::shared_ptr<OrderedFuture> ordered_future(
      const c10::intrusive_ptr<WorkIsthmus>& self) {
    return std::make_shared<OrderedFuture>(self->getFuture(), self->group_, &self->communicator_);
  }

 private:
  using Step = void (*)(WorkIsthmus& self);

  void wait_for_parts(milliseconds timeout, Interrupt& interrupt) {
    const Deadline deadline =
        timeout == kNoTimeout ? Deadline() : Deadline::after_ms(timeout.count());
    for (const WorkRef& part : job_.parts) {
      if (part->done()) {
        continue;
      }
      const Status status = part->wait(deadline, [&interrupt] { return interrupt.keep_waiting(); });
      if (interrupt.happened()) {
        return;
      }
      if (!part->done()) {
        raise(status.error().code == Code::kTimeout ? late(*part, timeout) : status.error());
      }
    }
  }

  Error late(const isthmus::Work& part, milliseconds timeout) const {
    return {
        .code = Code::kTimeout,
        .message = c10::str(
            job_.title, is_message(job_.type) ? "" : c10::str(" #", part.sequence()), " in group '",
            communicator_.name(), "' is not done after a wait of ", timeout.count(),
            " ms. It goes on, and may be waited for again; at the group's own limit of ",
            communicator_.timeout_ms(), " ms it fails and names the ranks that are missing.")};
  }

  // Runs `step` after the last part, and after the steps of earlier works: see Work::on_done().
  void when_done(Step step) {
    struct Countdown {
      PendingCallback pending;
      c10::intrusive_ptr<WorkIsthmus> self;
      std::atomic<std::size_t> left;
    };

    if (job_.parts.empty()) {
      settle();
      step(*this);
      return;
    }
    auto countdown = std::make_shared<Countdown>();
    countdown->self = c10::intrusive_ptr<WorkIsthmus>::unsafe_reclaim_from_nonowning(this);
    countdown->left = job_.parts.size();
    for (const WorkRef& part : job_.parts) {
      part->on_done([countdown = countdown, step]() mutable {
        const CallbackScope scope(&countdown->self->communicator_);
        if (countdown->left.fetch_sub(1) == 1) {
          countdown->self->settle();
          step(*countdown->self);
        }
        countdown.reset();
      });
    }
  }

  void settle() {
    std::call_once(once_, [this] {
      std::exception_ptr failed;
      for (const WorkRef& part : job_.parts) {
        if (part->error() != nullptr && failed == nullptr) {
          failed = to_exception(*part->error());
        }
      }
      try {
        if (failed == nullptr) {
          copy_all(job_.copies);
        }
      } catch (...) {
        failed = std::current_exception();
      }
      // Only our own copies are dropped: other tensors may need Python's lock for that.
      for (Copy& copy : job_.copies) {
        copy.from.reset();
      }
      if (observation_.has_value()) {
        observation_->stop();
      }
      settled_.store(true, std::memory_order_release);
      finish(failed);
    });
  }

  void complete_future() {
    if (const std::exception_ptr failed = exception()) {
      future_->setError(failed);
    } else if (job_.nested) {
      future_->markCompleted(c10::IValue(TensorLists{job_.outputs}));
    } else {
      future_->markCompleted(c10::IValue(job_.outputs));
    }
  }

  std::shared_ptr<Group> group_;
  const Communicator& communicator_;  // lives in group_
  Job job_;
  std::optional<Observation> observation_;
  std::once_flag once_;
  std::atomic<bool> settled_{false};
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace isthmus::plugin
