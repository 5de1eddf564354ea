#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/result.h"
#include "kernels/binned.h"
#include "kernels/reduce.h"
#include "schedule/geometry.h"
#include "schedule/schedule.h"
#include "schedule/scratch.h"
#include "schedule/uneven.h"
#include "schedule/work.h"
#include "transport/endpoint.h"
#include "transport/shm/segment.h"

namespace isthmus {

struct Channel;

// A schedule bound to one element type and reduction: what the schedule cache holds.
struct Plan {
  Schedule schedule;
  ReduceFn reduce = nullptr;           // null where the schedule reduces nothing
  std::size_t counted_bytes = 1;       // of what `reduce` counts: elements, or binned sums
  mutable std::uint32_t borrowed = 0;  // synchronous runs that use it now; under the baton
};

// Binned sums that become the caller's result when the steps are done, some of them in each pass.
struct Delivery {
  UnbinFn unbin = nullptr;  // null: the steps write the caller's output themselves
  const std::byte* sums = nullptr;
  std::byte* to = nullptr;
  std::size_t sum_bytes = 0;
  std::size_t number_bytes = 0;
  std::size_t left = 0;  // numbers
  std::int32_t divisor = 1;
};

// One execution of a plan on one channel. Lives on the stack of a synchronous caller or in the
// engine's pool; everything under the engine's token.
struct Run {
  enum class State : std::uint8_t { kPending, kActive, kDone };

  // Bound by the caller.
  Channel* channel = nullptr;
  const Plan* plan = nullptr;
  std::shared_ptr<const Plan> keep;  // asynchronous: the cache may drop the plan meanwhile
  OperationInfo info;
  const std::byte* input = nullptr;
  ScratchPool::Block operand;  // where this rank's operand is made beforehand: `input` is there
  std::byte* output = nullptr;
  Geometry geometry;
  std::unique_ptr<const Uneven> uneven;  // null where all ranks' blocks have one length
  std::int32_t divisor = 1;  // of the finishing reduction: the number of operands for AVG
  Delivery delivery;
  std::int64_t timeout_ms = 0;
  WorkRef work;                               // null for a synchronous run
  const KeepWaiting* keep_waiting = nullptr;  // of a synchronous run, where its caller has one

  // Owned by the engine.
  State state = State::kPending;
  bool failed = false;
  std::uint32_t sequence = 0;
  std::int64_t deadline_ns =
      Deadline::kNever;          // set at the first wait: the fast path reads no clock
  std::uint32_t next = 0;        // in order: the step to run
  std::uint32_t await_from = 0;  // local rank at which the current Await goes on
  bool noted = false;            // its wait shows in RankState
  std::vector<int> told;         // world ranks it waits for, as last told to other nodes
  std::int64_t told_ns = 0;      // when that was
  std::uint32_t left = 0;        // dataflow: steps not done
  std::optional<StageLease> lease;
  std::int64_t mismatch_since_ns =
      0;  // a peer's signature differs: since when the others are awaited
  std::optional<Error> error;
  ScratchPool::Block scratch;
  std::vector<std::uint32_t> waits;     // dataflow: unmet dependencies of each step
  std::vector<std::uint32_t> ready;     // dataflow: may run now
  std::vector<std::uint32_t> awaiting;  // dataflow: Awaits not yet satisfied
  std::vector<std::uint32_t> busy;      // dataflow: posts to be tried again
  std::vector<bool> posted;             // dataflow: with the transport
  bool alike = true;  // every announcement so far exposes its buffers as this rank does
  std::array<std::byte*, kReduceSourcesMax> stage;  // dataflow and in order: of each local rank

  // Where exposed: of each other local rank, to be used here or, if pulled, in its process.
  std::array<const std::byte*, kReduceSourcesMax> peer_input;
  std::array<std::byte*, kReduceSourcesMax> peer_output;
};

// Of the memory that its plan needs.
inline std::size_t scratch_bytes(const Run& run) {
  return std::size_t{run.plan->schedule.scratch_units} * run.geometry.unit_bytes();
}

}  // namespace isthmus
