// `isthmus schedule explain`: which algorithm an operation gets, and why not another one.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "collectives/select.h"
#include "schedule/cost.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/node_view.h"
#include "tools/isthmus/schedule_build.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

// One algorithm of the operation, as it looks for this group and size.
struct Candidate {
  const Algorithm* algorithm = nullptr;
  bool fits = false;
  Prediction prediction;
  std::string why_not;  // empty for the one that is picked
};

// The largest size class up to this one that an algorithm takes, 0 for none.
std::size_t most_bytes(const Algorithm& algorithm, const Topology& topology,
                       const Payload& payload) {
  Payload smaller = payload;
  for (std::uint32_t index = size_class(payload.bytes) + 1; index-- > 0;) {
    smaller.bytes = size_class_bytes(index);
    if (algorithm.applicable(topology, smaller)) {
      return smaller.bytes;
    }
  }
  return 0;
}

// Found by asking the algorithm about other sizes and groups: no list of reasons that could be
// wrong about a new one.
std::string why_unfit(const Algorithm& algorithm, const Topology& topology,
                      const Payload& payload) {
  if (const std::size_t most = most_bytes(algorithm, topology, payload); most > 0) {
    return fmt::format("takes at most {} here", bytes_text(most));
  }
  Payload exact = payload;
  exact.mapped = true;
  if (!payload.mapped && most_bytes(algorithm, topology, exact) > 0) {
    return "is for buffers that the group allocated";
  }
  Topology pulls = topology;
  pulls.set_pulls(true);
  if (!topology.pulls() && most_bytes(algorithm, pulls, exact) > 0) {
    return "is for ranks that may read each other's processes, and measured only";
  }
  exact.rounds = false;
  if (payload.rounds && most_bytes(algorithm, topology, exact) > 0) {
    return "would round 16-bit sums more than once on a level";
  }
  if (topology.nodes() > 1 && most_bytes(algorithm, Topology::grid(1, 2), exact) > 0) {
    return "is for ranks of one node, which read each other's memory";
  }
  if (most_bytes(algorithm, Topology::grid(1, 1), exact) > 0) {
    return "is for a group of one rank";
  }
  if (topology.nodes() == 1 && most_bytes(algorithm, Topology::grid(2, 2), exact) > 0) {
    return "is for several nodes";
  }
  return fmt::format("does not take {} ranks on {} node{}", topology.ranks(), topology.nodes(),
                     topology.nodes() == 1 ? "" : "s");
}

bool needless(const Algorithm& algorithm, const Algorithm& picked, const Topology& topology) {
  return topology.one_mapped_node() && sends_messages(algorithm) && !sends_messages(picked);
}

// An alternative's time as a multiple of the picked one's.
std::string slower_text(double times) {
  const double percent = 100.0 * (times - 1.0);
  if (times >= 1000.0) {
    return "is not used before `isthmus tune` has measured it";
  }
  if (times >= 10.0) {
    return fmt::format("{:.0f} times slower", times);
  }
  if (percent >= 0.05) {
    return fmt::format("{:.1f} % slower", percent);
  }
  return percent > -0.05 ? std::string("not faster, and later in the table")
                         : fmt::format("{:.1f} % faster, but another is forced", -percent);
}

std::vector<Candidate> candidates_of(const NodeView& view, const ScheduleOptions& options,
                                     const Payload& payload, const Algorithm* picked) {
  const TunedRanks* tuned = view.tuned_part();
  const double picked_us = predict(*picked, view.topology, payload, tuned).us();
  std::vector<Candidate> out;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.op != options.op) {
      continue;
    }
    Candidate one;
    one.algorithm = &algorithm;
    one.fits = algorithm.applicable(view.topology, payload);
    if (one.fits) {
      one.prediction = predict(algorithm, view.topology, payload, tuned);
    } else {
      one.why_not = why_unfit(algorithm, view.topology, payload);
    }
    out.push_back(std::move(one));
  }
  for (Candidate& one : out) {
    if (one.fits && one.algorithm != picked && picked_us > 0.0) {
      one.why_not = needless(*one.algorithm, *picked, view.topology)
                        ? std::string("sends messages, where others read the ranks' memory")
                        : slower_text(one.prediction.us() / picked_us);
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const Candidate& one, const Candidate& other) {
    return one.fits != other.fits ? one.fits
                                  : one.fits && one.prediction.us() < other.prediction.us();
  });
  return out;
}

void print_part(const char* name, double us, double total, const std::string& note) {
  fmt::print("  {:22} {:>12.2f} us {:>4.0f} %  {}\n", name, us,
             total > 0.0 ? 100.0 * us / total : 0, note);
}

std::string mib_text(double bytes) {
  return bytes < 1048576.0 ? fmt::format("{:.1f} KiB", bytes / 1024.0)
                           : fmt::format("{:.1f} MiB", bytes / 1048576.0);
}

// The parts of the time, with what each part counts, of rank 0.
void print_parts(const Prediction& prediction, const NodeView& view, const Choice& choice,
                 const Payload& payload) {
  const Estimate& parts = prediction.parts;
  const double total = parts.total_us();
  fmt::print("Predicted time: {:.2f} us{}\n", total,
             prediction.measured ? ", from times of this algorithm itself" : "");
  if (sends_messages(*choice.algorithm)) {
    print_part(
        "messages", parts.messages_us, total,
        fmt::format("{:.0f} us a message, {:.0f} us a MiB between nodes{}",
                    view.topology.between().alpha_us, view.topology.between().beta_us_per_mib,
                    view.topology.racks() > 1 ? fmt::format(", {:.0f} and {:.0f} between racks",
                                                            view.topology.across().alpha_us,
                                                            view.topology.across().beta_us_per_mib)
                                              : ""));
    return;
  }
  const Result<Schedule> schedule =
      choice.algorithm->build({.topology = view.topology, .tuning = choice.tuning});
  const RankCost cost =
      schedule.ok() ? cost_of(*schedule, view.topology, payload.bytes) : RankCost();
  print_part("waiting for flags", parts.flags_us, total,
             fmt::format("{} waits until other ranks are as far", cost.awaits));
  const double read = static_cast<double>(cost.bytes_read);
  print_part("copies", parts.copies_us, total,
             fmt::format("{} of own memory, {} out of other ranks' memory",
                         mib_text(static_cast<double>(cost.bytes_copied) - read), mib_text(read)));
  print_part("reductions", parts.reduces_us, total,
             fmt::format("{} of operands", mib_text(static_cast<double>(cost.bytes_reduced))));
  if (view.topology.node_costs().sharing > 1.0) {
    fmt::print("  {:.1f} ranks share a processor: their work is done one after another\n",
               view.topology.node_costs().sharing);
  }
}

Json json_of(const Candidate& one, bool picked) {
  const Estimate& parts = one.prediction.parts;
  Json out = {{"algorithm", one.algorithm->name},
              {"text", one.algorithm->text},
              {"picked", picked},
              {"fits", one.fits}};
  if (one.fits) {
    out["predicted_us"] = one.prediction.us();
    out["parts_us"] = {{"flags", parts.flags_us},
                       {"copies", parts.copies_us},
                       {"reductions", parts.reduces_us},
                       {"messages", parts.messages_us}};
    out["measured"] = one.prediction.measured;
  }
  if (!picked) {
    out["why_not"] = one.why_not;
  }
  return out;
}

void print_json(const ScheduleOptions& options, const NodeView& view, const Choice& choice,
                const std::vector<Candidate>& candidates) {
  Json out = {{"op", op_kind_name(options.op)},
              {"bytes", options.bytes},
              {"size_class_bytes", size_class_bytes(size_class(options.bytes))},
              {"nodes", view.topology.nodes()},
              {"locals", view.topology.locals_max()},
              {"ranks_per_processor", view.topology.node_costs().sharing},
              {"costs", view.costs_from},
              {"measured", view.tuned.has_value()},
              {"algorithm", choice.algorithm->name},
              {"pieces", choice.tuning.pieces},
              {"slots", choice.tuning.slots},
              {"lead", choice.tuning.lead}};
  out["candidates"] = Json::array();
  for (const Candidate& one : candidates) {
    out["candidates"].push_back(json_of(one, one.algorithm == choice.algorithm));
  }
  fmt::print("{}\n", out.dump(1));
}

void print_text(const ScheduleOptions& options, const NodeView& view, const Choice& choice,
                const Payload& payload, const std::vector<Candidate>& candidates) {
  const bool forced = !options.algorithm.empty() && choice.algorithm->name == options.algorithm;
  fmt::print("{} of {}{} on {}\n", op_kind_name(options.op), bytes_text(options.bytes),
             options.rounds ? ", 16-bit elements," : "", view.group_text());
  fmt::print("Picked: {}{}\n  {}\n", choice.algorithm->name, forced ? ", because it is forced" : "",
             choice.algorithm->text);
  if (choice.tuning.pieces > 1) {
    fmt::print("  in {} pieces, {} of them staged at a time, {} ahead of the one being read\n",
               choice.tuning.pieces, choice.tuning.slots, choice.tuning.lead);
  }
  std::size_t fit = 0;
  for (const Candidate& one : candidates) {
    if (one.fits && !needless(*one.algorithm, *choice.algorithm, view.topology)) {
      ++fit;
    }
    if (one.algorithm == choice.algorithm) {
      print_parts(one.prediction, view, choice, payload);
    }
  }
  if (!forced) {
    fmt::print(
        "Why: of {} algorithm{} that fit, it has the least predicted time for {}, the "
        "largest size of its class\n",
        fit, fit == 1 ? "" : "s", bytes_text(size_class_bytes(size_class(options.bytes))));
  }
  fmt::print("Costs: {}\n", view.costs_from);
  fmt::print("Alternatives{}\n", candidates.size() == 1 ? ": none" : "");
  for (const Candidate& one : candidates) {
    if (one.algorithm != choice.algorithm) {
      fmt::print("  {:26} {:>15}  {}\n", one.algorithm->name,
                 one.fits ? fmt::format("{:.2f} us", one.prediction.us()) : std::string("-"),
                 one.why_not);
    }
  }
  fmt::print(
      "Another one: ISTHMUS_ALGO=NAME in the environment of all ranks; `isthmus schedule "
      "show` prints its steps\n");
}

}  // namespace

int run_schedule_explain(const ScheduleOptions& given) {
  ScheduleOptions options = given;
  if (options.algorithm.empty() && find_algorithm(options.op, env().ALGO) != nullptr) {
    options.algorithm = env().ALGO;
  }
  const Result<NodeView> seen = view_of(options);
  if (!seen.ok()) {
    return say_schedule_error(seen.error());
  }
  const NodeView& view = *seen;
  const TunedRanks* tuned = view.tuned_part();
  const Payload payload{.bytes = static_cast<std::size_t>(options.bytes), .rounds = options.rounds};
  const Result<Choice> choice =
      select_algorithm(view.topology, options.op, payload, options.algorithm, tuned);
  if (!choice.ok()) {
    return say_schedule_error(choice.error());
  }
  const std::vector<Candidate> candidates =
      candidates_of(view, options, payload, choice->algorithm);
  if (options.json) {
    print_json(options, view, *choice, candidates);
  } else {
    print_text(options, view, *choice, payload, candidates);
  }
  return 0;
}

}  // namespace isthmus
