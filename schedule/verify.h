#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace isthmus {

// When a Send is over: at once, its bytes having been taken (eager), or not before the receiver has
// posted its Recv (rendezvous). A schedule must be right in both.
enum class Delivery : std::uint8_t { kEager, kRendezvous };

// Proves that the schedules of all ranks (entry r is rank r's) do what their operation promises, in
// every interleaving, for every byte count:
//   - they agree on operation, group, root and partition, and stay within the units they ask for;
//   - messages pair up, in number and in length; awaited values are published; nothing waits for
//     itself: all steps end;
//   - no race: two steps of which one writes what the other reads or writes are ordered, by the
//     rank's own dependencies when both are its own, else by published and awaited lines. A Send
//     reads, and a Recv writes, from its post to its end. Input and output count as one memory
//     where in place would make them one;
//   - exposed buffers are read between their owner's announcement and the end of its operation;
//   - results: every output mark holds every contribution exactly once, finished exactly once and
//     last; for all_reduce combined by the same tree on all ranks, hence to the same bits. Both for
//     input and output apart and in place;
//   - the input is never written, a mapped space only by its owner;
//   - no byte of the output is written before every rank (of what comes from a root: the root) is
//     known to have started the same operation; a barrier ends only then.
// Because no race is left, one execution stands for all; so the time is linear in steps and marks,
// but for the square of one rank's steps / 64 where a schedule does not run in order.
//
// A failure (kInternal) names rank and step. Pure; any thread.
Status verify(std::span<const Schedule> schedules, const Topology& topology, Delivery delivery);

// Proves two operations that follow one another on one group where the slots of the first are used
// again by the second: `second` reuses them as the fourth after (kSlotRing), with others between,
// and so does `first` after `second`. What the engine has to guarantee itself, and what this does
// not model: staging is leased to one operation until all its readers have finished, and
// announcement lines are reused only after everyone's `finished` passed their sequence number.
Status verify_pair(std::span<const Schedule> first, std::span<const Schedule> second,
                   const Topology& topology, Delivery delivery);

}  // namespace isthmus
