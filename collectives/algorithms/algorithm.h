#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "schedule/builder.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace isthmus {

// How an algorithm cuts the data and how far it runs ahead. Part of a schedule's identity: all
// ranks of a group use the same.
struct Tuning {
  // Pieces that the pipeline handles one after another: of the whole data (all_reduce, broadcast)
  // or of each rank's block (all_gather, reduce_scatter: a power of two).
  std::uint32_t pieces = 1;
  std::uint32_t slots = 1;  // staged pieces a rank may have in flight
  std::uint32_t lead = 0;   // pieces staged ahead of the one being read; below slots

  // Rounds between nodes that halve a slice of the data before those that exchange what is left of
  // it: more of them send fewer bytes in more rounds.
  std::uint32_t halvings = 0;

  // The staging slot of a piece.
  std::uint32_t slot(std::uint32_t piece) const { return piece % std::max(slots, 1U); }

  bool operator==(const Tuning&) const = default;
};

// What is known of the data when an algorithm is chosen.
struct Payload {
  std::size_t bytes = 0;     // the whole data, or one rank's block: as Geometry takes it
  bool rounds = false;       // reducing rounds to 16 bits: at most once per level then
  bool unknown = false;      // a rank knows only the lengths of its own blocks (all_to_all)
  bool even = true;          // blocks have one length
  std::uint32_t shards = 0;  // as in Request
  bool mapped = false;       // the buffers that peers would read lie in memory that they map
};

// Sizes are handled by class: every size of a class has the same algorithm, tuning and schedule.
// Class 0 ends at the payload of an announcement line, the others at 64 x 2^k bytes.
std::uint32_t size_class(std::size_t bytes);
std::size_t size_class_bytes(std::uint32_t size_class);

// One rank's question for its steps.
struct Request {
  const Topology& topology;
  std::uint32_t rank = 0;
  std::uint32_t root = 0;
  Tuning tuning;
  std::uint32_t shards = 0;  // reduce_shards: blocks of the whole data; 0: a node's ranks
};

// Those of an operation with shards where nothing else is asked for: as many as a node has ranks,
// or, where that does not divide all ranks, their greatest common divisor.
std::uint32_t shards_of(const Topology& topology, std::uint32_t asked);

// One row of the table of algorithms: pure functions, same answer on every rank.
struct Algorithm {
  std::string_view name;
  OpKind op = OpKind::kBarrier;
  std::string_view text;  // one line for `isthmus schedule list`

  // Whether it is correct for the payload's whole size class.
  bool (*applicable)(const Topology& topology, const Payload& payload);

  // The tuning for the payload's size class.
  Tuning (*tune)(const Topology& topology, const Payload& payload);

  // Estimated time by closed form, from alpha, beta and gamma. Null: its schedule's own steps are
  // counted (estimate.h), as for all that send no messages.
  double (*cost_us)(const Topology& topology, const Payload& payload);

  Result<Schedule> (*build)(const Request& request);
};

// All algorithms, in an order in which equal costs prefer the earlier.
std::span<const Algorithm> algorithms();

// Null when there is none of this name for the operation.
const Algorithm* find_algorithm(OpKind op, std::string_view name);

// For algorithms: a Builder for the request's rank. With `mapped` its locals are the ranks of its
// node, else it has none but itself.
Builder start_schedule(const Request& request, OpKind op, std::string_view name,
                       const Partition& partition, bool mapped);

// The whole data in the tuning's pieces; one block per rank, each in so many.
Partition whole_partition(const Request& request);
Partition ranked_partition(const Request& request);

// One block per shard.
Partition shards_partition(const Request& request);

// Pieces of about `piece_bytes` for the payload's size class, 1 to `most`; a power of two.
std::uint32_t pieces_of(std::size_t bytes, std::size_t piece_bytes, std::uint32_t most);

}  // namespace isthmus
