#include "schedule/cost.h"

#include <algorithm>

namespace isthmus {

namespace {

constexpr double kMib = 1048576.0;

std::size_t operands_beyond_first(const Step& step) {
  return step.count == 0 ? 1 : step.count - 1;
}

// One operand is only moved.
bool moves(const Step& step) {
  return step.kind == StepKind::kCopy || (step.kind == StepKind::kReduce && step.count == 1);
}

bool reads_peer(const Step& step, std::uint32_t local) {
  const bool others = is_mapped(step.src.space) || is_exposed(step.src.space);
  return others && step.src.local != local;
}

void add_message(const Step& step, std::uint32_t rank, const Topology& topology, std::size_t length,
                 RankCost* cost) {
  const int node = topology.node_of(static_cast<int>(rank));
  const int other = topology.node_of(static_cast<int>(step.peer));
  const std::size_t crosses = other != node ? length : 0;
  const bool leaves_rack = topology.rack_of_node(other) != topology.rack_of_node(node);
  const std::size_t across = leaves_rack ? length : 0;
  if (step.kind == StepKind::kRecv) {
    cost->bytes_neck_in += crosses;
    cost->bytes_rack_in += across;
    return;
  }
  ++cost->messages;
  cost->bytes_sent += length;
  cost->bytes_neck_out += crosses;
  cost->bytes_rack_out += across;
}

}  // namespace

double footprint_of(const Schedule& schedule, const Geometry& geometry) {
  const OpTraits& traits = op_traits(schedule.op);
  const bool one_block = traits.input_block || traits.output_block;
  const double whole = static_cast<double>(geometry.total_bytes());
  const double other =
      one_block && schedule.partition.ranked ? static_cast<double>(geometry.block_bytes()) : whole;
  return whole + other;
}

RankWork::RankWork(const Schedule& schedule, const Geometry& geometry, const Topology& topology)
    : local_(schedule.local) {
  const NodeCosts& costs = topology.node_costs();
  const double footprint = footprint_of(schedule, geometry);
  copy_ = costs.copy.at(footprint) * costs.sharing / kMib;
  const RateCurve& read = schedule.exposure == Exposure::kPulled ? costs.pull : costs.read;
  read_ = read.at(footprint) * costs.sharing / kMib;
  combine_ = costs.combine.at(footprint) * costs.sharing / kMib;
  reduce_ = costs.reduce.at(footprint) * costs.sharing / kMib;
}

double RankWork::us(const Step& step, double bytes) const {
  if (step.kind != StepKind::kCopy && step.kind != StepKind::kReduce) {
    return 0.0;
  }
  if (moves(step)) {
    return bytes * (reads_peer(step, local_) ? read_ : copy_);
  }
  const auto others = static_cast<double>(operands_beyond_first(step));
  // A result that goes to all is written to each of the others too.
  const double written = step.dst.local == kEveryone ? others * copy_ : 0.0;
  return bytes * (combine_ + reduce_ * others + written);
}

RankCost cost_of(const Schedule& schedule, const Topology& topology, std::size_t bytes) {
  const Geometry geometry(schedule.partition, bytes);
  const RankWork work(schedule, geometry, topology);
  RankCost cost;
  for (const Step& step : schedule.steps) {
    const std::size_t length = geometry.length(step.begin, step.end);
    if (step.kind == StepKind::kSend || step.kind == StepKind::kRecv) {
      add_message(step, schedule.rank, topology, length, &cost);
    } else if (step.kind == StepKind::kAwait) {
      cost.awaits += step.count > 0 ? 1U : 0U;
    } else if (step.kind == StepKind::kCopy) {
      cost.bytes_copied += length;
      cost.bytes_read += reads_peer(step, schedule.local) ? length : 0;
      cost.copy_us += work.us(step, static_cast<double>(length));
    } else if (step.kind == StepKind::kReduce) {
      cost.bytes_reduced += length * operands_beyond_first(step);
      (moves(step) ? cost.copy_us : cost.reduce_us) += work.us(step, static_cast<double>(length));
    }
  }
  return cost;
}

GroupCost cost_of(std::span<const Schedule> schedules, const Topology& topology,
                  std::size_t bytes) {
  GroupCost cost;
  cost.neck_out.assign(static_cast<std::size_t>(topology.nodes()), 0);
  cost.neck_in.assign(static_cast<std::size_t>(topology.nodes()), 0);
  cost.rack_out.assign(static_cast<std::size_t>(topology.racks()), 0);
  cost.rack_in.assign(static_cast<std::size_t>(topology.racks()), 0);
  for (const Schedule& schedule : schedules) {
    cost.ranks.push_back(cost_of(schedule, topology, bytes));
    const auto node = static_cast<std::size_t>(topology.node_of(static_cast<int>(schedule.rank)));
    cost.neck_out[node] += cost.ranks.back().bytes_neck_out;
    cost.neck_in[node] += cost.ranks.back().bytes_neck_in;
    const auto rack = static_cast<std::size_t>(topology.rack_of_node(static_cast<int>(node)));
    cost.rack_out[rack] += cost.ranks.back().bytes_rack_out;
    cost.rack_in[rack] += cost.ranks.back().bytes_rack_in;
    cost.bound_us = std::max(cost.bound_us, cost.ranks.back().core_us());
  }
  for (std::size_t node = 0; node < cost.neck_out.size(); ++node) {
    const auto busiest = static_cast<double>(std::max(cost.neck_out[node], cost.neck_in[node]));
    cost.bound_us = std::max(cost.bound_us, busiest / kMib * topology.between().beta_us_per_mib);
  }
  for (std::size_t rack = 0; rack < cost.rack_out.size(); ++rack) {
    const auto busiest = static_cast<double>(std::max(cost.rack_out[rack], cost.rack_in[rack]));
    cost.bound_us = std::max(cost.bound_us, busiest / kMib * topology.across().beta_us_per_mib);
  }
  return cost;
}

}  // namespace isthmus
