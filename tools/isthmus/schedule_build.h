#pragma once

#include <vector>

#include "base/result.h"
#include "collectives/select.h"
#include "schedule/schedule.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/node_view.h"

namespace isthmus {

// Schedules as the `schedule` subcommands ask for them. Pure but for say_schedule_error().

// The algorithm asked for, or the one that would be chosen. Checks --rank and --root too.
Result<Choice> choose(const NodeView& view, const ScheduleOptions& options);

// The steps of one rank.
Result<Schedule> build_one(const NodeView& view, const Choice& choice,
                           const ScheduleOptions& options, int rank);

// Those of all ranks.
Result<std::vector<Schedule>> build_all(const NodeView& view, const Choice& choice,
                                        const ScheduleOptions& options);

// Says an error on stderr; the exit code that belongs to it.
int say_schedule_error(const Error& error);

}  // namespace isthmus
