#include "schedule/lanes.h"

#include <algorithm>
#include <utility>

namespace isthmus {
namespace {

// 0 on threads that are no lane; d + 1 on lane d.
thread_local int depth_of_thread = 0;

struct HookHolder {
  std::mutex mutex;
  Lanes::Hook hook;
};

HookHolder& hook_holder() {
  static HookHolder holder;
  return holder;
}

}  // namespace

int Lanes::current_depth() {
  return std::min(depth_of_thread, kLanesMax - 1);
}

void Lanes::set_hook(Hook hook) {
  HookHolder& holder = hook_holder();
  const std::lock_guard<std::mutex> lock(holder.mutex);
  holder.hook = std::move(hook);
}

void Lanes::issued(const WorkRef& work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_[work->stream() + static_cast<std::uint64_t>(work->lane())].push_back(work);
}

void Lanes::done(const WorkRef& work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t stream = work->stream() + static_cast<std::uint64_t>(work->lane());
  const auto found = streams_.find(stream);
  if (found == streams_.end()) {
    return;
  }
  std::deque<WorkRef>& queue = found->second;
  while (!queue.empty() && queue.front()->done()) {
    WorkRef head = std::move(queue.front());
    queue.pop_front();
    push(std::move(head));
  }
  if (queue.empty()) {
    streams_.erase(found);
  }
}

void Lanes::push(WorkRef work) {
  const int depth = work->lane();
  if (stopped_) {
    return;
  }
  if (!work->hand_over()) {
    return;  // nobody asked: no thread needs to wake
  }
  Lane& lane = lanes_[static_cast<std::size_t>(depth)];
  const std::lock_guard<std::mutex> lock(lane.mutex);
  lane.queue.push_back(std::move(work));
  if (!lane.thread.joinable()) {
    lane.thread = std::thread([this, depth] { lane_main(depth); });
  }
  lane.wake.notify_one();
}

void Lanes::lane_main(int depth) {
  depth_of_thread = depth + 1;
  Lane& lane = lanes_[static_cast<std::size_t>(depth)];
  const auto body = [&] {
    std::unique_lock<std::mutex> lock(lane.mutex);
    for (;;) {
      lane.wake.wait(lock, [&] { return lane.stopping || !lane.queue.empty(); });
      if (lane.queue.empty()) {
        return;
      }
      const WorkRef work = std::move(lane.queue.front());
      lane.queue.pop_front();
      lock.unlock();
      for (const std::function<void()>& callback : work->take_callbacks()) {
        callback();
      }
      lock.lock();
    }
  };
  Hook hook;
  {
    HookHolder& holder = hook_holder();
    const std::lock_guard<std::mutex> lock(holder.mutex);
    hook = holder.hook;
  }
  if (hook) {
    hook(body);
  } else {
    body();
  }
}

void Lanes::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  for (Lane& lane : lanes_) {
    {
      const std::lock_guard<std::mutex> lock(lane.mutex);
      lane.stopping = true;
    }
    lane.wake.notify_one();
    // A world destroyed by its own callback cannot join its lane: the thread ends by itself.
    if (lane.thread.joinable() && lane.thread.get_id() != std::this_thread::get_id()) {
      lane.thread.join();
    }
  }
}

}  // namespace isthmus
