// `isthmus schedule cost` and `simulate`: what a collective would take, without running it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "collectives/select.h"
#include "schedule/cost.h"
#include "schedule/simulate.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/schedule_build.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

// Timelines are for people: more lines than this help nobody.
constexpr std::size_t kTimelineMax = 2000;

std::size_t most(const std::vector<std::size_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

double share(double part, double whole) {
  return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

double least(const std::vector<double>& values) {
  return values.empty() ? 0.0 : *std::min_element(values.begin(), values.end());
}

double most(const std::vector<double>& values) {
  return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
}

void print_simulation(const ScheduleOptions& options, const NodeView& view, const Choice& choice,
                      const Simulation& run) {
  const int ranks = view.topology.ranks();
  fmt::print("{} by {}: {}, {}, {} delivery\n", op_kind_name(options.op), choice.algorithm->name,
             view.group_text(), bytes_text(options.bytes),
             options.rendezvous ? "rendezvous" : "eager");
  fmt::print("  time                 {:.2f} us\n", run.makespan_us);
  fmt::print("  first rank ends at   {:.2f} us\n", least(run.end_us));
  fmt::print("  bytes out of a node  {} at most\n", most(run.neck_out));
  fmt::print("  neck busy            {:.1f} % of the time\n",
             share(most(run.neck_busy_us), run.makespan_us));
  if (view.topology.racks() > 1) {
    fmt::print("  bytes out of a rack   {} at most, its link busy {:.1f} % of the time\n",
               most(run.rack_out), share(most(run.rack_busy_us), run.makespan_us));
  }
  fmt::print("  simulated            {} of {} ranks, {} steps{}\n", run.roles, ranks, run.steps,
             run.roles < static_cast<std::size_t>(ranks) ? "; the others do the same" : "");
  fmt::print("  costs                {}\n", view.costs_from);
}

void print_simulation_json(const ScheduleOptions& options, const NodeView& view,
                           const Choice& choice, const Simulation& run) {
  const Tuning& tuning = choice.tuning;
  Json out = {{"op", op_kind_name(options.op)},
              {"algorithm", choice.algorithm->name},
              {"bytes", options.bytes},
              {"ranks", view.topology.ranks()},
              {"nodes", view.topology.nodes()},
              {"racks", view.topology.racks()},
              {"delivery", options.rendezvous ? "rendezvous" : "eager"},
              {"pieces", tuning.pieces},
              {"halvings", tuning.halvings},
              {"time_us", run.makespan_us},
              {"first_end_us", least(run.end_us)},
              {"neck_bytes_out", most(run.neck_out)},
              {"neck_busy_us", most(run.neck_busy_us)},
              {"rack_bytes_out", most(run.rack_out)},
              {"rack_busy_us", most(run.rack_busy_us)},
              {"simulated_ranks", run.roles},
              {"simulated_steps", run.steps},
              {"costs", view.costs_from}};
  fmt::print("{}\n", out.dump(1));
}

// Of ranks that do the same the lowest one's.
int print_timeline(const Simulation& run, const ScheduleSource& build) {
  std::map<std::uint32_t, Schedule> schedules;
  std::size_t lines = 0;
  for (const StepTimes& times : run.timeline) {
    if (lines++ == kTimelineMax) {
      fmt::print("  (and {} more steps)\n", run.timeline.size() - kTimelineMax);
      break;
    }
    if (!schedules.contains(times.rank)) {
      Result<Schedule> schedule = build(times.rank);
      if (!schedule.ok()) {
        return say_schedule_error(schedule.error());
      }
      schedules[times.rank] = std::move(schedule).value();
    }
    fmt::print("  {:10.2f} {:10.2f} us  rank {:<4} step {:<4} {}\n", times.start_us, times.end_us,
               times.rank, times.step, describe(schedules[times.rank].steps[times.step]));
  }
  return 0;
}

}  // namespace

int run_schedule_cost(const ScheduleOptions& options) {
  const Result<NodeView> view = view_of(options);
  if (!view.ok()) {
    return say_schedule_error(view.error());
  }
  const Topology& topology = view->topology;
  const Result<Choice> choice = choose(*view, options);
  const Result<std::vector<Schedule>> schedules =
      choice.ok() ? build_all(*view, *choice, options)
                  : Result<std::vector<Schedule>>(choice.error());
  if (!schedules.ok()) {
    return say_schedule_error(schedules.error());
  }
  const std::size_t bytes = static_cast<std::size_t>(options.bytes);
  const GroupCost cost = cost_of(*schedules, topology, bytes);
  RankCost busiest;
  for (const RankCost& rank : cost.ranks) {
    busiest = rank.core_us() >= busiest.core_us() ? rank : busiest;
  }
  const Schedule& first = schedules->front();
  fmt::print("{} by {}: {}, {}\n", op_kind_name(first.op), first.algorithm, view->group_text(),
             bytes_text(options.bytes));
  fmt::print("  steps of rank 0            {}\n", first.steps.size());
  fmt::print("  busiest rank: messages     {}\n", busiest.messages);
  fmt::print("                bytes sent   {}\n", busiest.bytes_sent);
  fmt::print("                copied       {}\n", busiest.bytes_copied);
  fmt::print("                reduced      {}\n", busiest.bytes_reduced);
  fmt::print("                core time    {:.2f} us\n", busiest.core_us());
  fmt::print("  busiest node: bytes out    {}\n", most(cost.neck_out));
  fmt::print("                bytes in     {}\n", most(cost.neck_in));
  if (topology.racks() > 1) {
    fmt::print("  busiest rack: bytes out     {}\n", most(cost.rack_out));
    fmt::print("               bytes in      {}\n", most(cost.rack_in));
  }
  fmt::print("  no order is faster than    {:.2f} us (`isthmus schedule simulate` orders it)\n",
             cost.bound_us);
  return 0;
}

int run_schedule_simulate(const ScheduleOptions& options) {
  const Result<NodeView> view = view_of(options);
  if (!view.ok()) {
    return say_schedule_error(view.error());
  }
  const Result<Choice> choice = choose(*view, options);
  if (!choice.ok()) {
    return say_schedule_error(choice.error());
  }
  SimulateOptions how;
  how.delivery = options.rendezvous ? Delivery::kRendezvous : Delivery::kEager;
  how.timeline = options.timeline;
  const auto build = [&](std::uint32_t rank) {
    return build_one(*view, *choice, options, static_cast<int>(rank));
  };
  const Result<Simulation> run =
      simulate(build, view->topology, static_cast<std::size_t>(options.bytes), how);
  if (!run.ok()) {
    return say_schedule_error(run.error());
  }
  if (options.json) {
    print_simulation_json(options, *view, *choice, *run);
    return 0;
  }
  print_simulation(options, *view, *choice, *run);
  return print_timeline(*run, build);
}

}  // namespace isthmus
