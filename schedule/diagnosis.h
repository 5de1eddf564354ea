#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "schedule/channel.h"
#include "schedule/run.h"
#include "transport/endpoint.h"
#include "transport/shm/shm_node.h"

namespace isthmus {

// Sentences about failures: who, what, which number, whom it waits for. Pure functions on what the
// engine knows; all of it under the engine's token.

// "all_reduce #812 float32[4194304] SUM".
std::string describe_call(std::uint32_t sequence, const OperationInfo& info);

// "rank 3: all_reduce #812 float32[4194304] SUM in group 'default'".
std::string describe_run(const Channel& channel, std::uint32_t sequence, const OperationInfo& info);

// "ranks 1, 2 and 5", "rank 5".
std::string describe_ranks(const std::vector<int>& world_ranks);

// The error of a run whose step failed with `cause`.
Error describe_failure(const Run& run, std::uint32_t step, const Error& cause);

// The error of a run that stages more than this process ever may.
Error staging_error(const Run& run, std::size_t wanted, std::size_t allowed);

// The error of a run whose scratch memory the system does not give.
Error scratch_error(const Run& run, std::size_t wanted);

// A peer says that its buffers lie where it has no memory.
Error exposed_error(const Channel& channel, const MappedPeer& peer);

// "rank 5 is gone: ...".
Error gone_error(int world_rank);

// "rank 5 has left the group".
Error left_error(int world_rank);

// What a run waits for now: world ranks, and the step in words.
struct Wait {
  std::vector<int> world_ranks;
  std::uint32_t step = 0;
  bool announced = false;  // they have begun the operation: they wait, too, or are slow
};

Wait find_wait(const Run& run);

// A rank of this node whose process is stopped (SIGSTOP, a debugger).
bool is_stopped(const ShmNode& node, int world_rank);

// Those to blame for a wait, world ranks: follows "waits for" from each rank that is waited for to
// the ranks that wait for nobody, or whose process is stopped: what such a one said before counts
// no more. All that are waited for, where everybody waits for somebody.
std::vector<int> find_guilty(const Channel& channel, const ShmNode& node, const Wait& wait,
                             std::uint32_t sequence);

// Both sides of a mismatch. `infos` by world rank; the odd ranks are the minority.
struct Side {
  int world_rank = -1;
  OperationInfo info;
};

Error mismatch_between(const Channel& channel, std::uint32_t sequence,
                       const std::vector<Side>& sides);

// The error of a message step in an operation on which both sides agree, but for the bytes of this
// message: `here` and `there`.
Error lengths_error(const Run& run, const Step& step, std::size_t here, std::uint64_t there);

// Local ranks' announcements of this run's sequence number; false while some are missing.
bool gather_sides(const Run& run, std::vector<Side>* sides);

}  // namespace isthmus
