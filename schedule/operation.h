#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isthmus {

// Operations. The values are part of signatures and of the wire format: append only.
enum class OpKind : std::uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kBroadcast = 4,
  kSend = 5,
  kRecv = 6,
  kReduce = 7,
  kGather = 8,
  kScatter = 9,
  kAllToAll = 10,
  kReduceShards = 11,
};

inline constexpr int kOpKindCount = 12;

// Which ranks have a buffer.
enum class Party : std::uint8_t { kNobody, kRoot, kEveryone };

// What an operation does to its caller's buffers, for all who have to know: Builder and proof, the
// checks of a call, and what is printed.
struct OpTraits {
  std::string_view name;
  Party input = Party::kNobody;  // broadcast: nobody; its root's output is what all receive
  Party output = Party::kNobody;
  bool ranked = false;        // the whole data is one block per rank
  bool shards = false;        // fewer blocks: rank r has block r modulo their number
  bool input_block = false;   // the input is one rank's block, else the whole data
  bool output_block = false;  // the same of the output
  bool reduces = false;
  bool rooted = false;
  bool in_place = true;   // input and output may be one memory: the rank's block, or the whole data
  bool scheduled = true;  // false: a message between two ranks, matched outside schedules

  // Whether the output needs data of all ranks, or only the root's.
  bool from_root() const { return rooted && output == Party::kEveryone; }
};

inline constexpr std::array<OpTraits, kOpKindCount> kOpTraits = {{
    {.name = "barrier"},
    {.name = "all_reduce", .input = Party::kEveryone, .output = Party::kEveryone, .reduces = true},
    {.name = "all_gather",
     .input = Party::kEveryone,
     .output = Party::kEveryone,
     .ranked = true,
     .input_block = true},
    {.name = "reduce_scatter",
     .input = Party::kEveryone,
     .output = Party::kEveryone,
     .ranked = true,
     .output_block = true,
     .reduces = true},
    {.name = "broadcast", .output = Party::kEveryone, .rooted = true},
    {.name = "send", .input = Party::kEveryone, .scheduled = false},
    {.name = "recv", .output = Party::kEveryone, .scheduled = false},
    {.name = "reduce",
     .input = Party::kEveryone,
     .output = Party::kRoot,
     .reduces = true,
     .rooted = true},
    {.name = "gather",
     .input = Party::kEveryone,
     .output = Party::kRoot,
     .ranked = true,
     .input_block = true,
     .rooted = true},
    {.name = "scatter",
     .input = Party::kRoot,
     .output = Party::kEveryone,
     .ranked = true,
     .output_block = true,
     .rooted = true},
    {.name = "all_to_all",
     .input = Party::kEveryone,
     .output = Party::kEveryone,
     .ranked = true,
     .in_place = false},
    {.name = "reduce_shards",
     .input = Party::kEveryone,
     .output = Party::kEveryone,
     .ranked = true,
     .shards = true,
     .output_block = true,
     .reduces = true},
}};

inline constexpr OpTraits kUnknownOpTraits = {.name = "unknown"};

// Takes any value: it may have come from a peer.
constexpr const OpTraits& op_traits(OpKind op) {
  const std::size_t index = static_cast<std::size_t>(op);
  return index < kOpTraits.size() ? kOpTraits[index] : kUnknownOpTraits;
}

// Whether peers read a rank's output where buffers are exposed; else they read its input only.
constexpr bool peers_read_output(OpKind op) {
  return op == OpKind::kAllReduce || op == OpKind::kBroadcast;
}

constexpr std::string_view op_kind_name(OpKind op) {
  return op_traits(op).name;
}

}  // namespace isthmus
