#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "schedule/schedule.h"
#include "topology/topology.h"

namespace isthmus {

// What one rank's schedule moves and computes for a byte count.
struct RankCost {
  std::uint32_t messages = 0;      // sent to other ranks, signals too
  std::size_t bytes_sent = 0;      // in messages
  std::size_t bytes_neck_out = 0;  // of them, to other nodes
  std::size_t bytes_neck_in = 0;   // received from other nodes
  std::size_t bytes_rack_out = 0;  // sent to other racks
  std::size_t bytes_rack_in = 0;
  std::size_t bytes_copied = 0;
  std::size_t bytes_read = 0;     // of them, out of other ranks' memory
  std::size_t bytes_reduced = 0;  // operands beyond the first of every Reduce
  std::uint32_t awaits = 0;       // waits for other ranks' flags
  double copy_us = 0.0;           // of its core, for all copies
  double reduce_us = 0.0;         // and for all reductions

  double core_us() const { return copy_us + reduce_us; }

  bool operator==(const RankCost&) const = default;
};

// bytes as Geometry takes it: the whole data, or one rank's block. Needs this rank's schedule only,
// so it works for groups of any size. Pure.
RankCost cost_of(const Schedule& schedule, const Topology& topology, std::size_t bytes);

// All ranks together.
struct GroupCost {
  std::vector<RankCost> ranks;
  std::vector<std::size_t> neck_out;  // bytes that leave each node
  std::vector<std::size_t> neck_in;   // and that enter it
  std::vector<std::size_t> rack_out;  // the same of each rack
  std::vector<std::size_t> rack_in;

  // Time in which the busiest core or neck direction gets its work done: no order of steps ends
  // earlier. simulate() tells when they do end.
  double bound_us = 0.0;
};

GroupCost cost_of(std::span<const Schedule> schedules, const Topology& topology, std::size_t bytes);

// Rates of one schedule and size, from the caches that the footprint of the caller's buffers
// leaves, looked up once for all its steps. Where ranks share processors work counts as many times.
// Plain value.
class RankWork {
 public:
  RankWork(const Schedule& schedule, const Geometry& geometry, const Topology& topology);

  // Microseconds of `bytes` of a step's work on the core of its rank; 0 of messages and lines.
  double us(const Step& step, double bytes) const;

 private:
  std::uint32_t local_ = 0;
  double copy_ = 0.0;  // microseconds a byte
  double read_ = 0.0;
  double combine_ = 0.0;
  double reduce_ = 0.0;
};

// Bytes of one rank's buffers together, as NodeCosts takes it.
double footprint_of(const Schedule& schedule, const Geometry& geometry);

}  // namespace isthmus
