#include "schedule/work.h"

#include <utility>

#include "base/futex.h"
#include "schedule/engine.h"
#include "schedule/lanes.h"

namespace isthmus {

Status Work::wait(Deadline deadline, const KeepWaiting& keep_waiting) {
  if (done()) {
    const Error* failure = error();
    return failure == nullptr ? Status() : Status(*failure);
  }
  return engine_->wait(*this, deadline, keep_waiting);
}

Status Work::outcome() const {
  const Error* failure = error();
  return failure == nullptr ? Status() : Status(*failure);
}

void Work::on_done(std::function<void()> callback) {
  {
    const std::lock_guard<std::mutex> lock(callbacks_mutex_);
    if (!handed_over_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  if (lanes_ == nullptr || !Lanes::take_late(*lanes_, shared_from_this(), &callback)) {
    callback();
  }
}

void Work::add_late(std::function<void()> callback) {
  const std::lock_guard<std::mutex> lock(callbacks_mutex_);
  callbacks_.push_back(std::move(callback));
}

void Work::finish(std::optional<Error> error) {
  if (error) {
    error_ = std::move(error);
    state_.store(kFailed, std::memory_order_release);
  } else {
    state_.store(kSucceeded, std::memory_order_release);
  }
}

bool Work::hand_over() {
  const std::lock_guard<std::mutex> lock(callbacks_mutex_);
  handed_over_ = callbacks_.empty();
  return !handed_over_;
}

std::vector<std::function<void()>> Work::take_callbacks() {
  const std::lock_guard<std::mutex> lock(callbacks_mutex_);
  handed_over_ = true;
  return std::exchange(callbacks_, {});
}

}  // namespace isthmus
