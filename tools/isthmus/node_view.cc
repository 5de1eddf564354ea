#include "tools/isthmus/node_view.h"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "base/cpus.h"

namespace isthmus {

int processors_allowed() {
  return std::max(static_cast<int>(own_cpus().size()), 1);
}

NodeView view_of(const ScheduleOptions& options) {
  NodeView view;
  view.topology = Topology::grid(options.nodes, options.locals);
  if (options.nodes > 1) {
    view.costs_from = "built in: nothing is known of other nodes from here";
    return view;
  }
  NodeCosts costs;
  costs.sharing = std::max(1.0, static_cast<double>(options.locals) / processors_allowed());
  const std::string path = tuning_path();
  const Result<TuningTable> table =
      path.empty() ? Result<TuningTable>(
                         Error{.code = Code::kUnsupported, .message = "ISTHMUS_TUNE_FILE is none"})
                   : read_tuning(path);
  const TunedRanks* tuned = table.ok() ? table->nearest(options.locals, costs.sharing) : nullptr;
  if (tuned != nullptr) {
    const double sharing = costs.sharing;
    costs = tuned->costs;
    costs.sharing = sharing;
    view.tuned = *tuned;
    view.topology.set_pulls(tuned->pulls());
    view.costs_from =
        fmt::format("measured on this machine with {} ranks ({})", tuned->ranks, path);
  } else if (table.ok()) {
    view.costs_from = fmt::format(
        "built in: {} has no numbers for ranks that {} processors; `isthmus tune --ranks {}` adds "
        "them",
        path, costs.sharing > 1.0 ? "share" : "do not share", options.locals);
  } else if (table.error().sys_errno == ENOENT) {
    view.costs_from = "built in, of a typical server; `isthmus tune` measures this machine";
  } else {
    view.costs_from = fmt::format("built in: {}", table.error().message);
  }
  view.topology.set_node_costs(costs);
  return view;
}

}  // namespace isthmus
