#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/select.h"
#include "schedule/verify.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/schedule_build.h"
#include "topology/topology.h"

namespace isthmus {
namespace {

// Largest size class that verify goes up to: 1 GiB.
constexpr std::size_t kVerifyBytesMax = std::size_t{1} << 30;

// Ranks of a proof: minutes and gigabytes beyond.
constexpr int kVerifyRanksMax = 4096;

// An algorithm with a tuning, and the sizes that it was asked for.
struct Case {
  Choice choice;
  std::uint64_t bytes_min = 0;
  std::uint64_t bytes_max = 0;
};

// Names size classes by their largest sizes.
std::string sizes_text(const Case& one) {
  return one.bytes_min == one.bytes_max
             ? fmt::format("size class {}", bytes_text(one.bytes_max))
             : fmt::format("size classes {} to {}", bytes_text(one.bytes_min),
                           bytes_text(one.bytes_max));
}

void add_cases(const Topology& topology, const ScheduleOptions& options, std::uint64_t bytes,
               std::vector<Case>* cases) {
  const Payload payload{.bytes = static_cast<std::size_t>(bytes), .rounds = options.rounds};
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.op != options.op ||
        (!options.algorithm.empty() && algorithm.name != options.algorithm) ||
        !algorithm.applicable(topology, payload)) {
      continue;
    }
    const Choice choice{.algorithm = &algorithm, .tuning = algorithm.tune(topology, payload)};
    bool known = false;
    for (Case& other : *cases) {
      if (other.choice == choice) {
        other.bytes_max = bytes;
        known = true;
      }
    }
    if (!known) {
      cases->push_back({.choice = choice, .bytes_min = bytes, .bytes_max = bytes});
    }
  }
}

// All ranks' schedules: proved alone and after one another, in eager and rendezvous delivery.
Status prove(const Topology& topology, const Choice& choice, std::uint32_t root,
             std::size_t* steps) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    ISTHMUS_ASSIGN(Schedule schedule,
                   choice.algorithm->build({.topology = topology,
                                            .rank = static_cast<std::uint32_t>(rank),
                                            .root = root,
                                            .tuning = choice.tuning}));
    *steps = std::max(*steps, schedule.steps.size());
    schedules.push_back(std::move(schedule));
  }
  for (const Delivery delivery : {Delivery::kEager, Delivery::kRendezvous}) {
    ISTHMUS_TRY(verify(schedules, topology, delivery));
    ISTHMUS_TRY(verify_pair(schedules, schedules, topology, delivery));
  }
  return {};
}

Status prove_all_roots(const Topology& topology, const Choice& choice, std::size_t* steps) {
  const bool rooted = op_traits(choice.algorithm->op).rooted;
  for (int root = 0; root < (rooted ? topology.ranks() : 1); ++root) {
    ISTHMUS_TRY(prove(topology, choice, static_cast<std::uint32_t>(root), steps));
  }
  return {};
}

// Ranks are of the command line: bad ones are usage errors with a sentence.
Status check_place(const NodeView& view, const ScheduleOptions& options) {
  const int ranks = view.topology.ranks();
  for (const auto& [flag, value] : {std::pair("--rank", options.rank), {"--root", options.root}}) {
    if (value < 0 || value >= ranks) {
      return Error{.code = Code::kInvalidArgument,
                   .message = fmt::format("{} is {}, expected 0 to {}: {}", flag, value, ranks - 1,
                                          view.group_text())};
    }
  }
  return {};
}

}  // namespace

int say_schedule_error(const Error& error) {
  fmt::print(stderr, "isthmus schedule: {}\n", error.to_string());
  return error.code == Code::kInvalidArgument ? kExitUsage : kExitFailed;
}

Result<Choice> choose(const NodeView& view, const ScheduleOptions& options) {
  ISTHMUS_TRY(check_place(view, options));
  const Payload payload{.bytes = static_cast<std::size_t>(options.bytes), .rounds = options.rounds};
  return select_algorithm(view.topology, options.op, payload, options.algorithm, view.tuned_part());
}

Result<Schedule> build_one(const NodeView& view, const Choice& choice,
                           const ScheduleOptions& options, int rank) {
  return choice.algorithm->build({.topology = view.topology,
                                  .rank = static_cast<std::uint32_t>(rank),
                                  .root = static_cast<std::uint32_t>(options.root),
                                  .tuning = choice.tuning});
}

Result<std::vector<Schedule>> build_all(const NodeView& view, const Choice& choice,
                                        const ScheduleOptions& options) {
  std::vector<Schedule> schedules;
  schedules.reserve(static_cast<std::size_t>(view.topology.ranks()));
  for (int rank = 0; rank < view.topology.ranks(); ++rank) {
    ISTHMUS_ASSIGN(Schedule schedule, build_one(view, choice, options, rank));
    schedules.push_back(std::move(schedule));
  }
  return schedules;
}

int run_schedule_verify(const ScheduleOptions& options) {
  if (!options.algorithm.empty() && find_algorithm(options.op, options.algorithm) == nullptr) {
    return say_schedule_error(
        {.code = Code::kInvalidArgument,
         .message =
             fmt::format("{} has no algorithm '{}'; `isthmus schedule list {}` shows "
                         "what there is",
                         op_kind_name(options.op), options.algorithm, op_kind_name(options.op))});
  }
  const Result<NodeView> view = view_of(options);
  if (!view.ok()) {
    return say_schedule_error(view.error());
  }
  const Topology& topology = view->topology;
  if (topology.ranks() > kVerifyRanksMax) {
    return say_schedule_error(
        {.code = Code::kInvalidArgument,
         .message = fmt::format("a proof holds the steps of all ranks and takes up to {} of them, "
                                "not {}: prove a smaller group of the same shape (--ranks)",
                                kVerifyRanksMax, topology.ranks())});
  }
  std::vector<Case> cases;
  if (options.bytes_given) {
    add_cases(topology, options, options.bytes, &cases);
  } else {
    for (std::uint32_t at = 0; size_class_bytes(at) <= kVerifyBytesMax; ++at) {
      add_cases(topology, options, size_class_bytes(at), &cases);
    }
  }
  bool failed = false;
  for (const Case& one : cases) {
    const Tuning& tuning = one.choice.tuning;
    std::size_t steps = 0;
    const Status proved = prove_all_roots(topology, one.choice, &steps);
    failed = failed || !proved.ok();
    fmt::print("{:6} {} by {}: {} pieces, {} slots, lead {}; {}; {} steps a rank{}{}\n",
               proved.ok() ? "proved" : "FAILED", op_kind_name(options.op),
               one.choice.algorithm->name, tuning.pieces, tuning.slots, tuning.lead,
               sizes_text(one), steps, proved.ok() ? "" : ": ",
               proved.ok() ? "" : proved.error().message);
  }
  if (cases.empty()) {
    return say_schedule_error(
        {.code = Code::kInvalidArgument, .message = "no algorithm fits this topology and size"});
  }
  return failed ? kExitFailed : 0;
}

int run_schedule_list(const ScheduleOptions& options) {
  const Result<NodeView> seen = view_of(options);
  if (!seen.ok()) {
    return say_schedule_error(seen.error());
  }
  const NodeView& view = *seen;
  const Topology& topology = view.topology;
  const Payload payload{.bytes = static_cast<std::size_t>(options.bytes), .rounds = options.rounds};
  fmt::print("{}, {}{}; a * is what would be chosen\n", view.group_text(),
             bytes_text(options.bytes), options.rounds ? ", 16-bit elements" : "");
  fmt::print("  {:16} {:26} {:>14}  {}\n", "operation", "algorithm", "estimated us", "");
  for (const Algorithm& algorithm : algorithms()) {
    if (options.op_given && algorithm.op != options.op) {
      continue;
    }
    const bool fits = algorithm.applicable(topology, payload);
    const Result<Choice> choice =
        select_algorithm(topology, algorithm.op, payload, "", view.tuned_part());
    const bool chosen = choice.ok() && choice->algorithm == &algorithm;
    fmt::print(
        "{} {:16} {:26} {:>14}  {}\n", chosen ? '*' : ' ', op_kind_name(algorithm.op),
        algorithm.name,
        fits ? fmt::format("{:.2f}", predict(algorithm, topology, payload, view.tuned_part()).us())
             : "-",
        algorithm.text);
  }
  return 0;
}

int run_schedule_show(const ScheduleOptions& options) {
  const Result<NodeView> view = view_of(options);
  if (!view.ok()) {
    return say_schedule_error(view.error());
  }
  const Result<Choice> choice = choose(*view, options);
  const Result<Schedule> schedule = choice.ok() ? build_one(*view, *choice, options, options.rank)
                                                : Result<Schedule>(choice.error());
  if (!schedule.ok()) {
    return say_schedule_error(schedule.error());
  }
  fmt::print("{}", schedule->to_string());
  return 0;
}

}  // namespace isthmus
