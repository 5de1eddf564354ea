#pragma once

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// Collectives by messages alone, for any placement of ranks. No write of a user's output starts
// before every other rank's start is known (broadcast: the root's): through the data itself, or
// where data comes too early for that, through a dissemination of signals and
// Builder::gate_output().
//
// Sums that must round at most once (16-bit floats) take the direct ones, which combine all
// operands in one Reduce; the others combine two at a time.

// log2(P) exchanges of the whole data; ranks beyond a power of two fold theirs in first.
Result<Schedule> doubling_all_reduce(const Request& request);

// Everyone sends everything to everyone: one step, few bytes.
Result<Schedule> gather_all_reduce(const Request& request);

// Reduce-scatter, then all-gather, each to all peers at once.
Result<Schedule> direct_all_reduce(const Request& request);

// Reduce-scatter, then all-gather, around a ring, in `pieces` segments.
Result<Schedule> ring_all_reduce(const Request& request);

Result<Schedule> ring_reduce_scatter(const Request& request);
Result<Schedule> direct_reduce_scatter(const Request& request);

// The same, and every operand goes to all ranks that own its block.
Result<Schedule> direct_reduce_shards(const Request& request);

Result<Schedule> ring_all_gather(const Request& request);
Result<Schedule> direct_all_gather(const Request& request);

// log2(P) rounds, each doubling the blocks that a rank holds.
Result<Schedule> doubling_all_gather(const Request& request);

Result<Schedule> tree_broadcast(const Request& request);
Result<Schedule> chain_broadcast(const Request& request);

// Every rank adds its children's sums to its operand, all in one Reduce, on the way to the root: a
// binomial tree, or a chain that pipelines pieces.
Result<Schedule> tree_reduce(const Request& request);
Result<Schedule> chain_reduce(const Request& request);

// The root receives all operands and combines them in one Reduce.
Result<Schedule> direct_reduce(const Request& request);

Result<Schedule> direct_gather(const Request& request);
Result<Schedule> direct_scatter(const Request& request);

// Every block to its rank: blocks wait in scratch until all have started, or are sent after that.
Result<Schedule> direct_all_to_all(const Request& request);
Result<Schedule> pairwise_all_to_all(const Request& request);

// Recursive halving, then doubling: log2(P) exchanges each way, of half the data, a quarter, ...
Result<Schedule> halving_all_reduce(const Request& request);

Result<Schedule> dissemination_barrier(const Request& request);

// Signals after which this rank knows that every rank of the group has started.
void disseminate(Builder& b);

}  // namespace isthmus
