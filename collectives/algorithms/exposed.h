#pragma once

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// Collectives of one node without staging: the ranks read each other's buffers where they lie.
// load_* where the buffers are in memory that every rank maps (a Reduce takes its operands from the
// peers' buffers), pull_* for any memory, by copies between processes.
//
// Everyone announces where its buffers are, awaits all, reads, and goes back to its caller when
// everybody has said that it read all it needs.
Result<Schedule> load_all_reduce(const Request& request);
Result<Schedule> load_all_gather(const Request& request);
Result<Schedule> load_reduce_scatter(const Request& request);
Result<Schedule> load_all_to_all(const Request& request);

Result<Schedule> pull_all_reduce(const Request& request);
Result<Schedule> pull_all_gather(const Request& request);
Result<Schedule> pull_reduce_scatter(const Request& request);
Result<Schedule> pull_all_to_all(const Request& request);
Result<Schedule> pull_broadcast(const Request& request);
Result<Schedule> pull_gather(const Request& request);
Result<Schedule> pull_scatter(const Request& request);

}  // namespace isthmus
