#pragma once

#include <cstddef>

#include "schedule/schedule.h"

namespace isthmus {

// Fills release_begin, releases and wait_count of a schedule that does not run in order, by the
// rules that builder.h states. `gate` is the number of steps before the output gate, 0 when there
// is none. Linear in steps, marks that they cover, and dependencies found. For Builder only.
void infer_dependencies(Schedule* schedule, std::size_t gate);

// Where a caller's place lies when input and output are one buffer: the mark in the larger of the
// two. All schedules are made for both cases, in place and apart. Of an operation that has no
// in-place form the output lies behind the input.
std::uint32_t caller_mark(const Schedule& schedule, const Place& place);

// One more than the largest of them.
std::uint32_t caller_cells(const Schedule& schedule);

}  // namespace isthmus
