#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "schedule/work.h"

namespace isthmus {

// Threads on which completion callbacks run, so that none runs on a thread that moves data. Lane d
// runs the callbacks of works issued at depth d; a work issued inside a callback of lane d belongs
// to lane d + 1, so a callback may wait for such a work. Callbacks of one stream (group and lane)
// run in the order in which the works were issued. Threads are made on demand, at most kLanesMax.
// Thread rule: any thread.
class Lanes {
 public:
  // Depth of nested waits in callbacks. Deeper works share the last lane.
  static constexpr int kLanesMax = 8;

  using Hook = std::function<void(const std::function<void()>& body)>;

  Lanes() : pool_(std::make_shared<Pool>()) {}

  ~Lanes();

  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Lane that a work issued by the calling thread belongs to.
  static int current_depth();

  // Wraps the body of each lane thread; see World::set_lane_hook. Process-wide.
  static void set_hook(Hook hook);

  // Announces a work whose callbacks will come in issue order. Called when it is issued.
  void issued(const WorkRef& work);

  // The work is done. It goes to its lane once all earlier works of its stream have gone.
  void done(const WorkRef& work);

  // Takes no more works and lets the threads end once they have run what is queued. Waits for them,
  // but not on a lane: there the destructor does, for all lanes but its own. Idempotent.
  void stop();

 private:
  struct Lane {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<WorkRef> queue;
    std::thread thread;
    bool stopping = false;
  };

  // All that a lane's thread uses: shared with it, for a callback may destroy the Lanes.
  struct Pool {
    std::mutex mutex;
    std::map<std::uint64_t, std::deque<WorkRef>> streams;  // issued, not yet handed to a lane
    std::array<Lane, kLanesMax> lanes;
    bool stopped = false;
  };

  void push(WorkRef work);
  static void lane_main(const Pool* pool, Lane& lane, int depth);

  const std::shared_ptr<Pool> pool_;
};

}  // namespace isthmus
