#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "schedule/schedule.h"
#include "schedule/work.h"
#include "transport/priority.h"

namespace isthmus {

// One collective as its caller states it. Buffers may be any aligned memory of this process, where
// N is the number of ranks:
// - barrier: none
// - all_reduce: input[count] to output[count]; in place when they are equal
// - all_gather: input[count] to output[count x N]; in place when input is output + rank x count
// - reduce_scatter: input[count x N] to output[count]; in place when output is input + rank x count
// - broadcast: output[count], read on the root; input is ignored
// - reduce: input[count] to the root's output[count]; in place when they are equal
// - gather: input[count] to the root's output[count x N]; in place as all_gather
// - scatter: the root's input[count x N] to output[count]; in place as reduce_scatter
// - all_to_all: block r of input[count x N] to block (own rank) of output[count x N] of rank r; not
//   in place
// - reduce_shards: input[count x S], reduced over all ranks; rank r gets block r % S in
//   output[count]; S = `shards` divides N; in place when output is input + (r % S) x count
// Buffers that a rank does not have may be null.
//
// Blocks may differ in length: `counts` then has N numbers of elements, of the blocks of the whole
// data, the same on all ranks, and `count` is ignored (all_gather, reduce_scatter). An all_to_all
// takes both lists, of its own input and its own output: what rank a sends to b is what b takes
// from a.
struct Call {
  OpKind op = OpKind::kBarrier;
  DType dtype = DType::kByte;
  RedOp red_op = RedOp::kSum;
  std::uint32_t root = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // elements, see above
  double factor = 1.0;    // PREMUL_SUM: of this rank; other ranks may have another
  std::span<const std::size_t> counts = {};
  std::span<const std::size_t> output_counts = {};

  // Several operands of this rank (all_reduce, reduce, reduce_scatter), each as `input`, which is
  // ignored then. All ranks bring as many. The output may be one of them.
  std::span<const void* const> inputs = {};

  std::uint32_t shards = 0;  // reduce_shards: blocks of the whole data
};

// Operands that this rank brings to a reduction.
inline std::size_t operands_of(const Call& call) {
  return call.inputs.empty() ? 1 : call.inputs.size();
}

// The only operand of a call that has one.
inline const void* input_of(const Call& call) {
  return call.inputs.empty() ? call.input : call.inputs.front();
}

// Whether each rank knows only the lengths of its own blocks.
bool lengths_unknown(const Call& call);

// Elements of the largest block that all ranks know of; of the whole data where it has no blocks.
std::size_t largest_block(const Call& call);

inline std::size_t largest_count(const Call& call) {
  return call.counts.empty() ? call.count : largest_block(call);
}

// Blocks of the whole data, and which of them is a rank's, where it has blocks.
std::uint32_t blocks_of(const Call& call, std::uint32_t ranks);
std::uint32_t own_block(const Call& call, std::uint32_t rank, std::uint32_t ranks);

// Whether a rank is of those that a party names.
bool takes_part(Party party, const Call& call, std::uint32_t rank);

// Of the buffers of one rank of a group.
std::size_t input_bytes(const Call& call, std::uint32_t rank, std::uint32_t ranks);
std::size_t output_bytes(const Call& call, std::uint32_t rank, std::uint32_t ranks);

// First byte of each block and, last, the end.
std::vector<std::size_t> starts_of(std::span<const std::size_t> counts, std::size_t element_bytes);

// Hash of all that ranks must agree on, the number of operands included.
std::uint32_t signature_of(const Call& call);

// Count that goes beside the signature, of all operands of a rank; kCountVaries where each rank has
// lengths of its own.
std::uint64_t announced_count(const Call& call);

// Why a rank cannot make this call; empty when it can.
std::string why_refused(const Call& call, std::uint32_t rank, std::uint32_t ranks);

// Tags of messages go from 0 to here.
inline constexpr std::uint32_t kTagMax = 0x7fffffffU;

// One message as its sender or its receiver states it.
struct MessageCall {
  static constexpr int kAnySource = -2;

  bool is_recv = false;
  int peer = -1;  // rank in the group; kAnySource of a receive
  std::uint32_t tag = 0;
  const void* data = nullptr;  // of a send
  void* into = nullptr;        // of a receive
  std::size_t bytes = 0;
};

struct CallOptions {
  std::int64_t timeout_ms = -1;  // -1: the group's

  // Which operations' data goes first between nodes, where several want to: of this rank, whatever
  // the others say. Operations of a lower one end too (docs/multi-node.md).
  Priority priority = Priority::kNormal;

  // Of synchronous calls, where set: false interrupts the call (Ctrl-C). Half an operation cannot
  // be taken back, so that ends the group, and the peers are told.
  KeepWaiting keep_waiting = {};
};

}  // namespace isthmus
