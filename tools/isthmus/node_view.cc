#include "tools/isthmus/node_view.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <fmt/format.h>

#include "base/cpus.h"
#include "topology/topology_file.h"

namespace isthmus {

namespace {

Error invalid(std::string message) {
  return {.code = Code::kInvalidArgument, .message = std::move(message)};
}

Result<NodeView> view_of_file(const ScheduleOptions& options) {
  if (options.nodes > 0 || options.locals > 0 || options.nodes_per_rack > 0) {
    return invalid(
        "--topology says which nodes there are: --nodes, --locals and --nodes-per-rack cannot; "
        "--ranks may say how many ranks");
  }
  ISTHMUS_ASSIGN(const TopologyFile file, TopologyFile::read(options.topology));
  NodeView view;
  ISTHMUS_ASSIGN(view.topology, file.topology(options.ranks));
  view.costs_from = options.topology;
  return view;
}

// Nodes of equal size, by the flags that were given.
Result<Topology> grid_of(const ScheduleOptions& options) {
  const int locals = options.locals > 0 ? options.locals : 2;
  if (options.ranks > 0 && (options.nodes > 0 || options.ranks % locals != 0)) {
    return invalid(options.nodes > 0
                       ? std::string("--ranks goes with --locals, or with --topology: --nodes "
                                     "says the same again")
                       : fmt::format("--ranks is {}, expected a multiple of --locals, {}",
                                     options.ranks, locals));
  }
  const int nodes = options.ranks > 0   ? options.ranks / locals
                    : options.nodes > 0 ? options.nodes
                                        : 1;
  if (std::int64_t{nodes} * locals > Topology::kRanksMax) {
    return invalid(fmt::format("{} nodes of {} ranks: expected at most {} ranks", nodes, locals,
                               Topology::kRanksMax));
  }
  return Topology::grid(nodes, locals, options.nodes_per_rack);
}

}  // namespace

std::string NodeView::group_text() const {
  const int nodes = topology.nodes();
  const int least = topology.locals_min();
  const int most = topology.locals_max();
  const std::string racks =
      topology.racks() > 1 ? fmt::format("{} racks, ", topology.racks()) : std::string();
  return fmt::format("{}{} node{} of {}{} rank{}", racks, nodes, nodes == 1 ? "" : "s",
                     least == most ? std::string() : fmt::format("{} to ", least), most,
                     most == 1 ? "" : "s");
}

int processors_allowed() {
  return std::max(static_cast<int>(own_cpus().size()), 1);
}

double ranks_per_processor(int ranks) {
  return std::max(1.0, static_cast<double>(ranks) / processors_allowed());
}

Topology topology_of(const TunedRanks& tuned) {
  Topology topology = Topology::grid(1, tuned.ranks);
  topology.set_node_costs(tuned.costs);
  topology.set_pulls(tuned.pulls());
  return topology;
}

Result<NodeView> view_of(const ScheduleOptions& options) {
  if (!options.topology.empty()) {
    return view_of_file(options);
  }
  NodeView view;
  ISTHMUS_ASSIGN(view.topology, grid_of(options));
  const int locals = view.topology.locals_max();
  NodeCosts costs;
  costs.sharing = ranks_per_processor(locals);
  const std::string path = tuning_path();
  const Result<TuningTable> table =
      path.empty() ? Result<TuningTable>(
                         Error{.code = Code::kUnsupported, .message = "ISTHMUS_TUNE_FILE is none"})
                   : read_tuning(path);
  const TunedRanks* tuned = table.ok() ? table->nearest(locals, costs.sharing) : nullptr;
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
        path, costs.sharing > 1.0 ? "share" : "do not share", locals);
  } else if (table.error().sys_errno == ENOENT) {
    view.costs_from = "built in, of a typical server; `isthmus tune` measures this machine";
  } else {
    view.costs_from = fmt::format("built in: {}", table.error().message);
  }
  view.topology.set_node_costs(costs);
  if (view.topology.nodes() > 1) {
    const bool measured = table.ok() && table->between.has_value();
    if (measured) {
      view.topology.set_between(*table->between);
      view.topology.set_across(*table->between);
    }
    view.costs_from += measured ? "; between nodes measured as well"
                                : "; between nodes built in: `isthmus tune` as the ranks of a job "
                                  "measures it, --topology FILE says it";
  }
  return view;
}

}  // namespace isthmus
