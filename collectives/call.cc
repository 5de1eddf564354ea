#include "collectives/call.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "base/hash.h"
#include "transport/endpoint.h"

namespace isthmus {

namespace {

std::size_t total(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a);
  const auto second = reinterpret_cast<std::uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

// Of a call with several operands on this rank.
std::string why_inputs_refused(const Call& call, std::uint32_t rank, std::uint32_t ranks) {
  if (!op_traits(call.op).reduces) {
    return fmt::format("{} operands, expected one: it reduces nothing", call.inputs.size());
  }
  const bool missing = std::any_of(call.inputs.begin(), call.inputs.end(),
                                   [](const void* input) { return input == nullptr; });
  return missing && input_bytes(call, rank, ranks) > 0 ? "a buffer is null" : "";
}

std::string why_counts_refused(const Call& call, std::uint32_t rank, std::uint32_t ranks) {
  const bool both = call.op == OpKind::kAllToAll;
  if (!both && call.op != OpKind::kAllGather && call.op != OpKind::kReduceScatter) {
    return "its blocks have one length, expected no counts";
  }
  const std::size_t outputs = both ? ranks : 0;
  if (call.counts.size() != ranks || call.output_counts.size() != outputs) {
    return fmt::format("{} and {} counts of blocks, expected {} and {}", call.counts.size(),
                       call.output_counts.size(), ranks, outputs);
  }
  if (both && call.counts[rank] != call.output_counts[rank]) {
    return fmt::format("{} elements for itself, but {} from itself", call.counts[rank],
                       call.output_counts[rank]);
  }
  return {};
}

}  // namespace

bool takes_part(Party party, const Call& call, std::uint32_t rank) {
  return party == Party::kEveryone || (party == Party::kRoot && call.root == rank);
}

bool lengths_unknown(const Call& call) {
  return call.op == OpKind::kAllToAll && !call.counts.empty();
}

std::uint32_t blocks_of(const Call& call, std::uint32_t ranks) {
  return op_traits(call.op).shards ? call.shards : ranks;
}

std::uint32_t own_block(const Call& call, std::uint32_t rank, std::uint32_t ranks) {
  return rank % blocks_of(call, ranks);
}

std::size_t largest_block(const Call& call) {
  return lengths_unknown(call) ? 0 : *std::max_element(call.counts.begin(), call.counts.end());
}

std::size_t input_bytes(const Call& call, std::uint32_t rank, std::uint32_t ranks) {
  const OpTraits& traits = op_traits(call.op);
  const std::size_t element = dtype_bytes(call.dtype);
  if (call.counts.empty()) {
    return call.count * element *
           (traits.ranked && !traits.input_block ? blocks_of(call, ranks) : 1);
  }
  return element * (traits.input_block ? call.counts[rank] : total(call.counts));
}

std::size_t output_bytes(const Call& call, std::uint32_t rank, std::uint32_t ranks) {
  const OpTraits& traits = op_traits(call.op);
  const std::size_t element = dtype_bytes(call.dtype);
  if (call.counts.empty()) {
    return call.count * element *
           (traits.ranked && !traits.output_block ? blocks_of(call, ranks) : 1);
  }
  if (!call.output_counts.empty()) {
    return element * total(call.output_counts);
  }
  return element * (traits.output_block ? call.counts[rank] : total(call.counts));
}

std::vector<std::size_t> starts_of(std::span<const std::size_t> counts, std::size_t element_bytes) {
  std::vector<std::size_t> starts(counts.size() + 1, 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    starts[i + 1] = starts[i] + counts[i] * element_bytes;
  }
  return starts;
}

std::uint32_t signature_of(const Call& call) {
  const std::uint64_t what = static_cast<std::uint64_t>(call.op) |
                             (static_cast<std::uint64_t>(call.dtype) << 8) |
                             (static_cast<std::uint64_t>(call.red_op) << 16) |
                             (static_cast<std::uint64_t>(call.root) << 24) |
                             (static_cast<std::uint64_t>(call.shards) << 44);
  std::uint64_t hash = mix64(mix64(what) ^ (call.counts.empty() ? call.count : kCountVaries));
  if (!lengths_unknown(call)) {
    for (const std::size_t count : call.counts) {
      hash = mix64(hash ^ count);
    }
  }
  if (operands_of(call) != 1) {
    hash = mix64(hash ^ operands_of(call));
  }
  return static_cast<std::uint32_t>(hash);
}

std::uint64_t announced_count(const Call& call) {
  if (call.counts.empty()) [[likely]] {
    return call.count * operands_of(call);
  }
  return lengths_unknown(call) ? kCountVaries : total(call.counts) * operands_of(call);
}

std::string why_refused(const Call& call, std::uint32_t rank, std::uint32_t ranks) {
  const OpTraits& traits = op_traits(call.op);
  if (call.root >= ranks) {
    return fmt::format("root {} is not a rank of a group of {}", call.root, ranks);
  }
  if (traits.shards && (call.shards == 0 || ranks % call.shards != 0)) {
    return fmt::format("{} shards, expected a number that divides the {} ranks of the group",
                       call.shards, ranks);
  }
  if (traits.reduces && !reducible(call.dtype, call.red_op)) {
    return fmt::format("{} does not go with {}: {}", red_op_name(call.red_op),
                       dtype_name(call.dtype), why_not_reducible(call.dtype, call.red_op));
  }
  if (!call.counts.empty() || !call.output_counts.empty()) {
    std::string why = why_counts_refused(call, rank, ranks);
    if (!why.empty()) {
      return why;
    }
  }
  const std::size_t most =
      std::numeric_limits<std::size_t>::max() / (dtype_bytes(call.dtype) * ranks);
  if (largest_count(call) > most) {
    return fmt::format("{} elements overflow the address space", largest_count(call));
  }
  if (!call.inputs.empty()) {
    std::string why = why_inputs_refused(call, rank, ranks);
    if (!why.empty()) {
      return why;
    }
  }
  const bool no_input =
      takes_part(traits.input, call, rank) && call.inputs.empty() && call.input == nullptr;
  const bool no_output = takes_part(traits.output, call, rank) && call.output == nullptr;
  if ((no_input && input_bytes(call, rank, ranks) > 0) ||
      (no_output && output_bytes(call, rank, ranks) > 0)) {
    return "a buffer is null";
  }
  if (!traits.in_place && ranks > 1 &&
      overlap(call.input, input_bytes(call, rank, ranks), call.output,
              output_bytes(call, rank, ranks))) {
    return "it has no in-place form: input and output overlap";
  }
  return {};
}

}  // namespace isthmus
