#pragma once

#include <functional>
#include <memory>

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

  Lanes();

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

  // A callback that is asked for when its work is done and had none before: goes to the lane, too,
  // while earlier callbacks are there. False, and nothing done, when there are none, or when this
  // thread is that lane.
  static bool take_late(LanePool& pool, const WorkRef& work, std::function<void()>* callback);

  // Takes no more works and lets the threads end once they have run what is queued. Waits for them,
  // but not on a lane: there the destructor does, for all lanes but its own. Idempotent.
  void stop();

 private:
  void push(WorkRef work);

  const std::shared_ptr<LanePool> pool_;
};

}  // namespace isthmus
