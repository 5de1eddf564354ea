#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/result.h"

namespace isthmus {

class Engine;
struct LanePool;

// Asked by a waiting thread every 200 ms or less, while it holds no lock; false ends the wait.
using KeepWaiting = std::function<bool()>;

// One operation in flight, as its issuer sees it: done, failed (rank, operation, sequence number,
// peer, step) or timed out; never hangs. Shared by the issuer and the engine until it is done, and
// by whoever asked to be told (shared_ptr: issuer, engine, completion lane). Thread rule: any
// thread.
class ISTHMUS_API Work : public std::enable_shared_from_this<Work> {
 public:
  explicit Work(Engine* engine) : engine_(engine) {}

  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() = default;

  bool done() const { return state_.load(std::memory_order_acquire) != kRunning; }

  // Null while running or when it succeeded.
  const Error* error() const {
    return state_.load(std::memory_order_acquire) == kFailed ? &*error_ : nullptr;
  }

  // Of a work that is done.
  Status outcome() const;

  // Blocks until done and returns its outcome, driving the engine meanwhile. When `deadline` passes
  // first: kTimeout, when `keep_waiting` (Ctrl-C) says no: kAborted. Either ends the wait only: the
  // work goes on and may be waited for again.
  Status wait(Deadline deadline, const KeepWaiting& keep_waiting = {});

  // Runs `callback` once the work is done, after all callbacks of earlier works of its stream: on a
  // completion lane (see schedule/lanes.h), or at once on this thread when the work is done and the
  // lane is idle.
  void on_done(std::function<void()> callback);

  std::uint32_t sequence() const { return sequence_; }

  int lane() const { return lane_; }

  // Of a receive that is done: the group rank that sent it; -1 of anything else.
  int source() const { return source_; }

  // Engine and communicator only.
  void set_identity(std::uint32_t sequence, std::uint64_t stream, int lane) {
    sequence_ = sequence;
    stream_ = stream;
    lane_ = lane;
  }

  // Lanes only, when the work is issued.
  void set_lanes(std::shared_ptr<LanePool> lanes) { lanes_ = std::move(lanes); }

  // Lanes only: a callback of a work that had none when it was done.
  void add_late(std::function<void()> callback);

  // Engine only, before finish().
  void set_source(int group_rank) { source_ = group_rank; }

  // Engine only, once: sets the outcome. Callbacks go to the lanes.
  void finish(std::optional<Error> error);

  // Names the group and lane whose completion order this work keeps.
  std::uint64_t stream() const { return stream_; }

  // Lanes only, after finish(), in the order of the stream. hand_over() is false, and the work
  // closed to the lane, when it has no callbacks; else take_callbacks() follows on the lane.
  bool hand_over();
  std::vector<std::function<void()>> take_callbacks();

 private:
  static constexpr std::uint32_t kRunning = 0;
  static constexpr std::uint32_t kSucceeded = 1;
  static constexpr std::uint32_t kFailed = 2;

  Engine* engine_;  // outlives every running work
  std::shared_ptr<LanePool> lanes_;
  std::atomic<std::uint32_t> state_{kRunning};
  std::uint32_t sequence_ = 0;
  std::uint64_t stream_ = 0;  // completion order is kept within a stream: (group, lane)
  int lane_ = 0;
  int source_ = -1;             // written before state_ becomes kSucceeded
  std::optional<Error> error_;  // written before state_ becomes kFailed
  std::mutex callbacks_mutex_;
  bool handed_over_ = false;
  std::vector<std::function<void()>> callbacks_;
};

using WorkRef = std::shared_ptr<Work>;

}  // namespace isthmus
