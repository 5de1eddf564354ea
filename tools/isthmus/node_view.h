#pragma once

#include <optional>
#include <string>

#include "collectives/tuning_table.h"
#include "tools/isthmus/commands.h"
#include "topology/topology.h"

namespace isthmus {

// The group that a `schedule` subcommand was asked about, with the costs that a job of it would
// have here. Plain values.
struct NodeView {
  Topology topology;
  std::optional<TunedRanks> tuned;  // the table's part for it
  std::string costs_from;           // "measured ..." or "built in: ...", for people

  // Null where nothing was measured.
  const TunedRanks* tuned_part() const { return tuned ? &*tuned : nullptr; }
};

// One node is taken for this machine: its processors, its tuning table. Several nodes are taken for
// machines where every rank has a processor, with built-in costs.
NodeView view_of(const ScheduleOptions& options);

// Processors that this process may use.
int processors_allowed();

}  // namespace isthmus
