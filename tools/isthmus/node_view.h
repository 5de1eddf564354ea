#pragma once

#include <optional>
#include <string>

#include "base/result.h"
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

  // "2 nodes of 4 ranks".
  std::string group_text() const;
};

// With a topology file: what it says. Else one node is taken for this machine: its processors, its
// tuning table; several nodes are taken for machines where every rank has a processor, with
// built-in costs. Fails with kInvalidArgument or kIo where there is no such group.
Result<NodeView> view_of(const ScheduleOptions& options);

// Processors that this process may use.
int processors_allowed();

// Of so many ranks on this machine; at least 1.
double ranks_per_processor(int ranks);

// One node as it was measured.
Topology topology_of(const TunedRanks& tuned);

}  // namespace isthmus
