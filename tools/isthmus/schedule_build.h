#pragma once

#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/node_view.h"

namespace isthmus {

// Schedules as the `schedule` subcommands ask for them. Pure but for say_schedule_error().

// The steps of one rank, by the algorithm asked for or the one that would be chosen.
Result<Schedule> build_one(const NodeView& view, const ScheduleOptions& options, int rank);

// Those of all ranks.
Result<std::vector<Schedule>> build_all(const NodeView& view, const ScheduleOptions& options);

// Says an error on stderr; the exit code that belongs to it.
int say_schedule_error(const Error& error);

}  // namespace isthmus
