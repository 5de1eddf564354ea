#include "collectives/select.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/nearest.h"

namespace isthmus {

namespace {

Error refuse(std::string message) {
  return {Code::kInvalidArgument, 0, -1, std::move(message)};
}

bool known_name(std::string_view name) {
  return std::any_of(algorithms().begin(), algorithms().end(),
                     [&](const Algorithm& algorithm) { return algorithm.name == name; });
}

Error unknown_name(std::string_view name) {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : algorithms()) {
    names.emplace_back(algorithm.name);
  }
  const std::string near = nearest(name, names);
  return refuse(fmt::format(
      "ISTHMUS_ALGO is '{}', but no algorithm has this name{}. `isthmus schedule list` prints all.",
      name, near.empty() ? std::string() : fmt::format("; did you mean '{}'?", near)));
}

}  // namespace

Prediction predict(const Algorithm& algorithm, const Topology& topology, const Payload& payload,
                   const TunedRanks* tuned) {
  Prediction out{.parts = estimate(algorithm, topology, payload)};
  if (tuned != nullptr && topology.one_mapped_node() &&
      tuned->measured(algorithm.op, algorithm.name)) {
    const double factor = tuned->factor(algorithm.op, algorithm.name, payload.bytes);
    out.measured = true;
    out.parts.flags_us *= factor;
    out.parts.copies_us *= factor;
    out.parts.reduces_us *= factor;
    out.parts.messages_us *= factor;
  }
  return out;
}

Payload largest_of_class(const Payload& payload) {
  Payload largest = payload;
  largest.bytes = size_class_bytes(size_class(payload.bytes));
  return largest;
}

Result<Choice> select_algorithm(const Topology& topology, OpKind op, const Payload& payload,
                                std::string_view forced, const TunedRanks* tuned) {
  const Payload largest = largest_of_class(payload);
  if (!forced.empty()) {
    if (!known_name(forced)) {
      return unknown_name(forced);
    }
    const Algorithm* algorithm = find_algorithm(op, forced);
    if (algorithm != nullptr) {
      if (!algorithm->applicable(topology, largest)) {
        return refuse(
            fmt::format("ISTHMUS_ALGO is '{}', but this algorithm cannot run {} of {} "
                        "bytes on {} ranks on {} nodes{}.",
                        forced, op_kind_name(op), payload.bytes, topology.ranks(), topology.nodes(),
                        topology.mapped_all() ? "" : " that do not all share memory"));
      }
      return Choice{algorithm, algorithm->tune(topology, largest)};
    }
  }
  const Algorithm* best = nullptr;
  double best_us = std::numeric_limits<double>::infinity();
  for (const bool messages : {false, true}) {
    for (const Algorithm& algorithm : algorithms()) {
      // Whatever its formula promises: a message inside a node is copied twice.
      const bool needless = messages && best != nullptr && topology.one_mapped_node();
      if (algorithm.op != op || sends_messages(algorithm) != messages || needless ||
          !algorithm.applicable(topology, largest)) {
        continue;
      }
      const double us = predict(algorithm, topology, largest, tuned).us();
      if (us < best_us) {
        best = &algorithm;
        best_us = us;
      }
    }
  }
  if (best == nullptr) {
    return Error{Code::kUnsupported, 0, -1,
                 fmt::format("No algorithm runs {} of {} bytes on {} ranks on {} nodes.",
                             op_kind_name(op), payload.bytes, topology.ranks(), topology.nodes())};
  }
  return Choice{best, best->tune(topology, largest)};
}

}  // namespace isthmus
