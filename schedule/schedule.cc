#include "schedule/schedule.h"

#include <iterator>

#include <fmt/format.h>

#include "base/hash.h"

namespace isthmus {

namespace {

constexpr std::uint64_t pack(std::uint32_t high, std::uint32_t low) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

std::uint64_t add_place(std::uint64_t hash, const Place& place) {
  hash = hash_combine(hash, static_cast<std::uint64_t>(place.space));
  return hash_combine(hash, pack(place.local, place.at));
}

std::uint64_t add_step(std::uint64_t hash, const Step& step) {
  const std::uint32_t flags =
      (static_cast<std::uint32_t>(step.kind) << 16) | (static_cast<std::uint32_t>(step.line) << 8) |
      (step.src_first ? 4U : 0U) | (step.finish ? 2U : 0U) | (step.own_input ? 1U : 0U);
  hash = hash_combine(hash, pack(flags, step.peer));
  hash = hash_combine(hash, pack(step.count, step.value));
  hash = hash_combine(hash, pack(step.begin, step.end));
  return add_place(add_place(hash, step.dst), step.src);
}

}  // namespace

std::uint32_t Schedule::caller_marks(Space space) const {
  const OpTraits& traits = op_traits(op);
  const Party party = space == Space::kInput ? traits.input : traits.output;
  if (party == Party::kNobody || (party == Party::kRoot && rank != root)) {
    return 0;
  }
  const bool block = space == Space::kInput ? traits.input_block : traits.output_block;
  return block ? partition.pieces() : partition.marks();
}

std::uint64_t Schedule::hash() const {
  std::uint64_t result = hash_bytes(algorithm);
  result = hash_combine(result, pack(static_cast<std::uint32_t>(op), root));
  result = hash_combine(result, pack(rank, ranks));
  result = hash_combine(result, pack(local, locals));
  result = hash_combine(result, pack(partition.blocks, partition.pieces_log2));
  result = hash_combine(result, (static_cast<std::uint64_t>(exposure) << 3) |
                                    (partition.ranked ? 4U : 0U) | (uses_line ? 2U : 0U) |
                                    (in_order ? 1U : 0U));
  result = hash_combine(result, pack(scratch_units, slot_units));
  result = hash_combine(result, stage_units);
  for (const Step& step : steps) {
    result = add_step(result, step);
  }
  for (const std::uint32_t begin : release_begin) {
    result = hash_combine(result, begin);
  }
  for (const std::uint32_t released : releases) {
    result = hash_combine(result, released);
  }
  return result;
}

std::string Schedule::to_string() const {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{} by {}: rank {} of {}, local {} of {}", op_kind_name(op), algorithm, rank,
                 ranks, local, locals);
  if (op_traits(op).rooted) {
    fmt::format_to(out, ", root {}", root);
  }
  fmt::format_to(out,
                 "; {} blocks of {} pieces, {}; units: scratch {}, slot {}, stage {}{}{}; {}\n",
                 partition.blocks, partition.pieces(), partition.ranked ? "one a rank" : "dense",
                 scratch_units, slot_units, stage_units, uses_line ? ", line" : "",
                 exposure == Exposure::kNone     ? ""
                 : exposure == Exposure::kMapped ? ", reads peers' mapped buffers"
                                                 : ", pulls peers' buffers",
                 in_order ? "in order" : "by dependencies");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    fmt::format_to(out, "{:5}  {}", i, describe(steps[i]));
    if (!release_begin.empty() && release_begin[i] != release_begin[i + 1]) {
      fmt::format_to(out, "; then");
      for (std::uint32_t at = release_begin[i]; at < release_begin[i + 1]; ++at) {
        fmt::format_to(out, " {}", releases[at]);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace isthmus
