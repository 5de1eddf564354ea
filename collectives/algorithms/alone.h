#pragma once

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// Groups of one rank: a copy, or nothing. Every reduction of one operand is that operand.
Result<Schedule> all_reduce_alone(const Request& request);
Result<Schedule> all_gather_alone(const Request& request);
Result<Schedule> reduce_scatter_alone(const Request& request);
Result<Schedule> broadcast_alone(const Request& request);
Result<Schedule> barrier_alone(const Request& request);

}  // namespace isthmus
