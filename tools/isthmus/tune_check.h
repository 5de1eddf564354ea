#pragma once

#include <vector>

#include "collectives/tuning_table.h"

namespace isthmus {

// `isthmus tune --check`: measures again, at sizes between those of the table, what the library
// picks by it for each number of ranks (none: all that the table has), and prints how far off the
// predicted times are. The exit code.
int run_tune_check(const TuningTable& table, const std::vector<int>& ranks, bool json);

}  // namespace isthmus
