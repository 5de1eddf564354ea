#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "schedule/schedule.h"

namespace isthmus {

// One collective as its caller states it. Buffers may be any aligned memory of this process.
//   barrier:         no buffers
//   all_reduce:      input[count] -> output[count]; in place when equal
//   all_gather:      input[count] -> output[count x ranks]; in place when input is output + rank x
//   count reduce_scatter:  input[count x ranks] -> output[count]; in place when output is input +
//   rank x count broadcast:       output[count], read on root; input is ignored
struct Call {
  OpKind op = OpKind::kBarrier;
  DType dtype = DType::kByte;
  RedOp red_op = RedOp::kSum;
  std::uint32_t root = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // elements, see above
};

struct CallOptions {
  std::int64_t timeout_ms = -1;  // -1: the group's
};

}  // namespace isthmus
