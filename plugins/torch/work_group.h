#pragma once

// Included by shim.cc only: one Work for a group of operations.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/clock.h"
#include "plugins/torch/job.h"
#include "plugins/torch/work.h"

namespace isthmus::plugin {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Works = std::vector<c10::intrusive_ptr<WorkIsthmus>>;

// Done when all its operations are. Each of them has a work of its own as well.
class WorkGroup final : public c10d::Work {
 public:
  WorkGroup(int rank, Works works)
      : Work(rank, OpType::COALESCED, nullptr), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isCompleted(); });
  }

  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isSuccess(); });
  }

  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (std::exception_ptr failed = work->exception()) {
        return failed;
      }
    }
    return nullptr;
  }

  // `timeout` is for all of them together. The first error ends the wait: what still runs keeps its
  // memory itself.
  bool wait(milliseconds timeout) override {
    const Deadline deadline = Deadline::after_ms(timeout.count());
    for (const auto& work : works_) {
      const milliseconds left(std::max<std::int64_t>(deadline.left_ms(monotonic_ns()), 1));
      work->wait(timeout == kNoTimeout ? kNoTimeout : left);
    }
    return true;
  }

  void synchronize() override { wait(kNoTimeout); }

  void abort() override {
    for (const auto& work : works_) {
      work->abort();
    }
  }

  Tensors result() override {
    Tensors all;
    for (const auto& work : works_) {
      const Tensors some = work->result();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  // Holds what result() gives.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const c10::TypePtr list = c10::ListType::create(c10::TensorType::get());
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> parts(c10::FutureType::create(list));
    for (const auto& work : works_) {
      parts.push_back(work->getFuture());
    }
    const auto self = c10::intrusive_ptr<WorkGroup>::unsafe_reclaim_from_nonowning(this);
    return c10::collectAll(parts)->then(
        [self](c10::ivalue::Future& all) {
          if (all.hasError()) {
            std::rethrow_exception(all.exception_ptr());
          }
          return c10::IValue(self->result());
        },
        list);
  }

 private:
  const Works works_;
};

// The asynchronous operations that each thread has issued since it started a group of them.
// Thread rule: any thread.
class Gatherer {
 public:
  // A group that is still there was left by an exception of the caller's own.
  void start() {
    const std::lock_guard lock(mutex_);
    groups_[std::this_thread::get_id()].clear();
  }

  void add(const c10::intrusive_ptr<WorkIsthmus>& work) {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(std::this_thread::get_id());
    if (found == groups_.end()) {
      return;
    }
    Works& works = found->second;
    if (works.size() >= kForgetfulFrom) {
      std::erase_if(works, [](const auto& one) { return one->isCompleted() && one->isSuccess(); });
    }
    works.push_back(work);
  }

  // False when this thread has started none.
  bool end(Works& works) {
    const std::lock_guard lock(mutex_);
    auto node = groups_.extract(std::this_thread::get_id());
    if (node.empty()) {
      return false;
    }
    works = std::move(node.mapped());
    return true;
  }

 private:
  // A group that nobody ends must not keep the memory of a whole training.
  static constexpr std::size_t kForgetfulFrom = 4096;

  std::mutex mutex_;
  std::map<std::thread::id, Works> groups_;
};

}  // namespace isthmus::plugin
