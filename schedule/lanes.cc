#include "schedule/lanes.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/cpus.h"

namespace isthmus {

// All that a lane's thread uses: shared with it, for a callback may destroy the Lanes; and with the
// works, for callbacks that are asked for late.
struct LanePool {
  struct Lane {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<WorkRef> queue;
    std::thread thread;
    bool running = false;  // callbacks, now
    bool stopping = false;
  };

  std::mutex mutex;
  std::map<std::uint64_t, std::deque<WorkRef>> streams;  // issued, not yet handed to a lane
  std::array<Lane, Lanes::kLanesMax> lanes;
  bool stopped = false;
};

namespace {

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): what a thread is
// 0 on threads that are no lane; d + 1 on lane d.
thread_local int depth_of_thread = 0;

// Whose lane the thread is, null for none. Only compared, never followed.
thread_local const void* pool_of_thread = nullptr;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

struct HookHolder {
  std::mutex mutex;
  Lanes::Hook hook;
};

HookHolder& hook_holder() {
  static HookHolder holder;
  return holder;
}

void lane_main(const LanePool* pool, LanePool::Lane& lane, int depth) {
  enter_own_thread();
  depth_of_thread = depth + 1;
  pool_of_thread = pool;
  const auto body = [&] {
    std::unique_lock<std::mutex> lock(lane.mutex);
    for (;;) {
      lane.wake.wait(lock, [&] { return lane.stopping || !lane.queue.empty(); });
      if (lane.queue.empty()) {
        return;
      }
      const WorkRef work = std::move(lane.queue.front());
      lane.queue.pop_front();
      lane.running = true;
      lock.unlock();
      for (const std::function<void()>& callback : work->take_callbacks()) {
        callback();
      }
      lock.lock();
      lane.running = false;
    }
  };
  Lanes::Hook hook;
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

}  // namespace

Lanes::Lanes() : pool_(std::make_shared<LanePool>()) {}

int Lanes::current_depth() {
  return std::min(depth_of_thread, kLanesMax - 1);
}

void Lanes::set_hook(Hook hook) {
  HookHolder& holder = hook_holder();
  const std::lock_guard<std::mutex> lock(holder.mutex);
  holder.hook = std::move(hook);
}

void Lanes::issued(const WorkRef& work) {
  work->set_lanes(pool_);
  const std::lock_guard<std::mutex> lock(pool_->mutex);
  pool_->streams[work->stream() + static_cast<std::uint64_t>(work->lane())].push_back(work);
}

void Lanes::done(const WorkRef& work) {
  const std::lock_guard<std::mutex> lock(pool_->mutex);
  const std::uint64_t stream = work->stream() + static_cast<std::uint64_t>(work->lane());
  const auto found = pool_->streams.find(stream);
  if (found == pool_->streams.end()) {
    return;
  }
  std::deque<WorkRef>& queue = found->second;
  while (!queue.empty() && queue.front()->done()) {
    WorkRef head = std::move(queue.front());
    queue.pop_front();
    push(std::move(head));
  }
  if (queue.empty()) {
    pool_->streams.erase(found);
  }
}

// Under the pool's lock.
void Lanes::push(WorkRef work) {
  const int depth = work->lane();
  if (pool_->stopped) {
    return;
  }
  if (!work->hand_over()) {
    return;  // nobody asked: no thread needs to wake
  }
  LanePool::Lane& lane = pool_->lanes[static_cast<std::size_t>(depth)];
  const std::lock_guard<std::mutex> lock(lane.mutex);
  lane.queue.push_back(std::move(work));
  if (!lane.thread.joinable()) {
    lane.thread = std::thread([pool = pool_, &lane, depth] { lane_main(pool.get(), lane, depth); });
  }
  lane.wake.notify_one();
}

bool Lanes::take_late(LanePool& pool, const WorkRef& work, std::function<void()>* callback) {
  if (pool_of_thread == &pool && depth_of_thread == work->lane() + 1) {
    return false;
  }
  LanePool::Lane& lane = pool.lanes[static_cast<std::size_t>(work->lane())];
  const std::lock_guard<std::mutex> lock(lane.mutex);
  if (!lane.running && lane.queue.empty()) {
    return false;
  }
  work->add_late(std::move(*callback));
  lane.queue.push_back(work);
  lane.wake.notify_one();
  return true;
}

void Lanes::stop() {
  {
    const std::lock_guard<std::mutex> lock(pool_->mutex);
    pool_->stopped = true;
  }
  for (LanePool::Lane& lane : pool_->lanes) {
    const std::lock_guard<std::mutex> lock(lane.mutex);
    lane.stopping = true;
    lane.wake.notify_one();
  }
  // Two lanes that end the same world must not wait for each other.
  if (pool_of_thread == pool_.get()) {
    return;
  }
  for (LanePool::Lane& lane : pool_->lanes) {
    if (lane.thread.joinable()) {
      lane.thread.join();
    }
  }
}

Lanes::~Lanes() {
  stop();
  // Works and the pool keep each other.
  std::map<std::uint64_t, std::deque<WorkRef>> unfinished;
  {
    const std::lock_guard<std::mutex> lock(pool_->mutex);
    unfinished.swap(pool_->streams);
  }
  for (LanePool::Lane& lane : pool_->lanes) {
    if (lane.thread.get_id() == std::this_thread::get_id()) {
      lane.thread.detach();  // ends by itself, after the callback that destroys this
    } else if (lane.thread.joinable()) {
      lane.thread.join();
    }
  }
}

}  // namespace isthmus
