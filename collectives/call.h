#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "schedule/schedule.h"
#include "schedule/work.h"

namespace isthmus {

// One collective as its caller states it. Buffers may be any aligned memory of this process, where
// N is the number of ranks:
// - barrier: none
// - all_reduce: input[count] to output[count]; in place when they are equal
// - all_gather: input[count] to output[count x N]; in place when input is output + rank x count
// - reduce_scatter: input[count x N] to output[count]; in place when output is input + rank x count
// - broadcast: output[count], read on the root; input is ignored
struct Call {
  OpKind op = OpKind::kBarrier;
  DType dtype = DType::kByte;
  RedOp red_op = RedOp::kSum;
  std::uint32_t root = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // elements, see above
  double factor = 1.0;    // PREMUL_SUM: of this rank; other ranks may have another
};

// One message as its sender or its receiver states it.
struct MessageCall {
  bool is_recv = false;
  int peer = -1;  // rank in the group
  std::uint32_t tag = 0;
  const void* data = nullptr;  // of a send
  void* into = nullptr;        // of a receive
  std::size_t bytes = 0;
};

struct CallOptions {
  std::int64_t timeout_ms = -1;  // -1: the group's

  // Of synchronous calls, where set: false interrupts the call (Ctrl-C). Half an operation cannot
  // be taken back, so that ends the group, and the peers are told.
  KeepWaiting keep_waiting = {};
};

}  // namespace isthmus
