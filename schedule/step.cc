#include "schedule/step.h"

#include <array>

#include <fmt/format.h>

namespace isthmus {

namespace {

constexpr std::array<std::string_view, kStepKindCount> kKindNames = {"Send",   "Recv",    "Copy",
                                                                     "Reduce", "Publish", "Await"};

constexpr std::array<std::string_view, 9> kSpaceNames = {
    "none", "input", "output", "scratch", "line", "slot", "stage", "peer input", "peer output"};

// "scratch 3"; where a space has owners the place names its own: "stage 3 of local 1".
std::string place_text(const Place& place) {
  if (place.space == Space::kNone) {
    return "nothing";
  }
  if (place.local == kEveryone) {
    return fmt::format("{} {} of every local", space_name(place.space), place.at);
  }
  if (has_owner(place.space)) {
    return fmt::format("{} {} of local {}", space_name(place.space), place.at, place.local);
  }
  return fmt::format("{} {}", space_name(place.space), place.at);
}

std::string reduce_text(const Step& step) {
  const std::string_view finish = step.finish ? ", finish" : "";
  if (step.count == 0) {
    return fmt::format("Reduce {} {} {}, marks [{}, {}){}", place_text(step.dst),
                       step.src_first ? "behind" : "with", place_text(step.src), step.begin,
                       step.end, finish);
  }
  if (has_owner(step.src.space)) {
    return fmt::format("Reduce {} {} of locals [{}, {}){} -> {}, marks [{}, {}){}",
                       space_name(step.src.space), step.src.at, step.src.local,
                       step.src.local + step.count, step.own_input ? " and own input" : "",
                       place_text(step.dst), step.begin, step.end, finish);
  }
  return fmt::format("Reduce {} spans from {} on{} -> {}, marks [{}, {}){}", step.count,
                     place_text({step.src.space, 0, step.src.at}),
                     step.own_input ? fmt::format(", number {} from input", step.src.local) : "",
                     place_text(step.dst), step.begin, step.end, finish);
}

}  // namespace

std::string_view step_kind_name(StepKind kind) {
  const std::size_t index = static_cast<std::size_t>(kind);
  return index < kKindNames.size() ? kKindNames[index] : "unknown";
}

std::string_view space_name(Space space) {
  const std::size_t index = static_cast<std::size_t>(space);
  return index < kSpaceNames.size() ? kSpaceNames[index] : "unknown";
}

std::string describe(const Step& step) {
  switch (step.kind) {
    case StepKind::kSend:
      return fmt::format("Send {}, marks [{}, {}), to rank {}, message {}", place_text(step.src),
                         step.begin, step.end, step.peer, step.value);
    case StepKind::kRecv:
      return fmt::format("Recv from rank {}, message {}, marks [{}, {}) -> {}", step.peer,
                         step.value, step.begin, step.end, place_text(step.dst));
    case StepKind::kCopy:
      return fmt::format("Copy {} -> {}, marks [{}, {})", place_text(step.src),
                         place_text(step.dst), step.begin, step.end);
    case StepKind::kReduce:
      return reduce_text(step);
    case StepKind::kPublish:
      return fmt::format("Publish line {} = {}", step.line, step.value);
    case StepKind::kAwait:
      return step.count == 0 ? std::string("Await nobody (joint)")
                             : fmt::format("Await line {} >= {} of locals [{}, {})", step.line,
                                           step.value, step.peer, step.peer + step.count);
  }
  return fmt::format("Step of unknown kind {}", static_cast<int>(step.kind));
}

}  // namespace isthmus
