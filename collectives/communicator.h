#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/export.h"
#include "base/result.h"
#include "collectives/call.h"
#include "schedule/work.h"

namespace isthmus {

class World;
class Group;
class Topology;

// A group of ranks and the operations on it: all_reduce(buffer, op) and its kin.
//
// Every rank of the group calls the same operations in the same order with the same dtype,
// reduction and count. A disagreement is refused on all ranks, before data moves, and the group
// stays usable; the death of a rank, a time-out, an interrupted synchronous call or abort() ends
// the group: later calls fail at once
// with the cause. Errors name rank, operation, sequence number, what was expected and who is to
// blame. docs/dtypes.md says which types go with which reductions; PREMUL_SUM, whose factor
// is in the Call, is for run() and start().
//
// Synchronous calls (run, all_reduce, ...) run on the caller's thread and return when the output is
// complete. start() returns a Work; buffers stay untouched until it is done.
// Thread rule: any thread; operations of one group are ordered by their issue.
class ISTHMUS_API Communicator {
 public:
  ~Communicator();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int size() const;
  std::string_view name() const;

  // World rank of each member, in group rank order.
  std::span<const int> world_ranks() const;

  Status run(const Call& call, const CallOptions& options = {});
  Result<WorkRef> start(const Call& call, const CallOptions& options = {});

  Status barrier(const CallOptions& options = {}) { return run({}, options); }

  Status all_reduce(const void* input, void* output, std::size_t count, DType dtype, RedOp op,
                    const CallOptions& options = {}) {
    return run({OpKind::kAllReduce, dtype, op, 0, input, output, count}, options);
  }

  // The same of several operands of this rank; all ranks bring as many. With ISTHMUS_DETERMINISTIC
  // the bits of a sum are those of its operands on any number of ranks (docs/determinism.md). A
  // name of its own: a list of pointers would also pass for the one input of all_reduce.
  Status all_reduce_contributions(std::span<const void* const> inputs, void* output,
                                  std::size_t count, DType dtype, RedOp op,
                                  const CallOptions& options = {}) {
    return run({.op = OpKind::kAllReduce,
                .dtype = dtype,
                .red_op = op,
                .output = output,
                .count = count,
                .inputs = inputs},
               options);
  }

  Status all_gather(const void* input, void* output, std::size_t count, DType dtype,
                    const CallOptions& options = {}) {
    return run({OpKind::kAllGather, dtype, RedOp::kSum, 0, input, output, count}, options);
  }

  Status reduce_scatter(const void* input, void* output, std::size_t count, DType dtype, RedOp op,
                        const CallOptions& options = {}) {
    return run({OpKind::kReduceScatter, dtype, op, 0, input, output, count}, options);
  }

  // The whole input[count x shards] is reduced over all ranks, and rank r gets block r % shards: a
  // reduce_scatter over the ranks that share shards, with an all_reduce over those that have the
  // same one, in one pipeline (HYBRID_SHARD). `shards` divides the number of ranks.
  // NOLINTNEXTLINE(readability-function-size): a reduce_scatter's parameters, and the shards
  Status reduce_shards(const void* input, void* output, std::size_t count, std::uint32_t shards,
                       DType dtype, RedOp op, const CallOptions& options = {}) {
    return run({.op = OpKind::kReduceShards,
                .dtype = dtype,
                .red_op = op,
                .input = input,
                .output = output,
                .count = count,
                .shards = shards},
               options);
  }

  Status broadcast(void* buffer, std::size_t count, DType dtype, int root,
                   const CallOptions& options = {}) {
    return run({OpKind::kBroadcast, dtype, RedOp::kSum, static_cast<std::uint32_t>(root), buffer,
                buffer, count},
               options);
  }

  // `output` is written on the root only, and may be null elsewhere.
  // NOLINTNEXTLINE(readability-function-size): the parameters that every such interface has
  Status reduce(const void* input, void* output, std::size_t count, DType dtype, RedOp op, int root,
                const CallOptions& options = {}) {
    return run({OpKind::kReduce, dtype, op, static_cast<std::uint32_t>(root), input, output, count},
               options);
  }

  Status gather(const void* input, void* output, std::size_t count, DType dtype, int root,
                const CallOptions& options = {}) {
    return run({OpKind::kGather, dtype, RedOp::kSum, static_cast<std::uint32_t>(root), input,
                output, count},
               options);
  }

  // `input` is read on the root only, and may be null elsewhere.
  Status scatter(const void* input, void* output, std::size_t count, DType dtype, int root,
                 const CallOptions& options = {}) {
    return run({OpKind::kScatter, dtype, RedOp::kSum, static_cast<std::uint32_t>(root), input,
                output, count},
               options);
  }

  Status all_to_all(const void* input, void* output, std::size_t count, DType dtype,
                    const CallOptions& options = {}) {
    return run({OpKind::kAllToAll, dtype, RedOp::kSum, 0, input, output, count}, options);
  }

  // Point to point, in bytes: the n-th send with a tag to a rank meets the n-th receive with that
  // tag from this rank, whatever the order of posting. Sizes must agree, else both ranks fail. A
  // small send may be done before its receiver refuses it: then the next message to or from that
  // rank fails at its start, names the refused one, and is not sent.
  Result<WorkRef> start_send(const void* data, std::size_t bytes, int peer, std::uint32_t tag,
                             const CallOptions& options = {});
  Result<WorkRef> start_recv(void* data, std::size_t bytes, int peer, std::uint32_t tag,
                             const CallOptions& options = {});

  // From whichever rank sends with the tag first; Work::source() says which. Receives that name a
  // rank take its next message, those from any rank what is left.
  Result<WorkRef> start_recv_any(void* data, std::size_t bytes, std::uint32_t tag,
                                 const CallOptions& options = {});

  // The group's nodes and what they cost: what algorithms are chosen by.
  const Topology& topology() const;

  // Time limit of later operations that give none.
  void set_timeout_ms(std::int64_t timeout_ms);
  std::int64_t timeout_ms() const;

  // Collectives issued so far on this rank (point to point is not counted).
  std::uint64_t sequence() const;

  // Ends every running and later operation of this group on this rank with `reason`, tells the
  // peers, waits for nobody. Idempotent.
  void abort(std::string_view reason);

  // The error that ended the group; null while it is usable.
  std::shared_ptr<const Error> failure() const;

  // Name of the algorithm that a call would use now, for tables.
  std::string algorithm_of(const Call& call);

  // Runs later collectives by this algorithm where they have one of that name, as ISTHMUS_ALGO
  // does; empty ends that. For programs that measure algorithms: every rank calls it between the
  // same two operations, while none is running.
  void force_algorithm(std::string_view name);

 private:
  friend class World;
  explicit Communicator(std::unique_ptr<Group> group);

  std::unique_ptr<Group> group_;
};

}  // namespace isthmus
