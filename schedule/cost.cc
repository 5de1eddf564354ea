#include "schedule/cost.h"

#include <algorithm>

namespace isthmus {

namespace {

constexpr double kMib = 1048576.0;

std::size_t operands_beyond_first(const Step& step) {
  return step.count == 0 ? 1 : step.count - 1;
}

}  // namespace

double core_us(const Step& step, const Geometry& geometry, const Topology& topology) {
  const double mib = static_cast<double>(geometry.length(step.begin, step.end)) / kMib;
  // One operand is only moved.
  if (step.kind == StepKind::kCopy || (step.kind == StepKind::kReduce && step.count == 1)) {
    return mib * topology.inside().beta_us_per_mib;
  }
  if (step.kind == StepKind::kReduce) {
    return mib * topology.gamma_us_per_mib() * static_cast<double>(operands_beyond_first(step));
  }
  return 0.0;
}

RankCost cost_of(const Schedule& schedule, const Topology& topology, std::size_t bytes) {
  const Geometry geometry(schedule.partition, bytes);
  const int node = topology.node_of(static_cast<int>(schedule.rank));
  RankCost cost;
  for (const Step& step : schedule.steps) {
    const std::size_t length = geometry.length(step.begin, step.end);
    const bool message = step.kind == StepKind::kSend || step.kind == StepKind::kRecv;
    const bool crosses = message && topology.node_of(static_cast<int>(step.peer)) != node;
    if (step.kind == StepKind::kSend) {
      ++cost.messages;
      cost.bytes_sent += length;
      cost.bytes_neck_out += crosses ? length : 0;
    } else if (step.kind == StepKind::kRecv) {
      cost.bytes_neck_in += crosses ? length : 0;
    } else if (step.kind == StepKind::kCopy) {
      cost.bytes_copied += length;
    } else if (step.kind == StepKind::kReduce) {
      cost.bytes_reduced += length * operands_beyond_first(step);
    }
    cost.core_us += core_us(step, geometry, topology);
  }
  return cost;
}

GroupCost cost_of(std::span<const Schedule> schedules, const Topology& topology,
                  std::size_t bytes) {
  GroupCost cost;
  cost.neck_out.assign(static_cast<std::size_t>(topology.nodes()), 0);
  cost.neck_in.assign(static_cast<std::size_t>(topology.nodes()), 0);
  for (const Schedule& schedule : schedules) {
    cost.ranks.push_back(cost_of(schedule, topology, bytes));
    const auto node = static_cast<std::size_t>(topology.node_of(static_cast<int>(schedule.rank)));
    cost.neck_out[node] += cost.ranks.back().bytes_neck_out;
    cost.neck_in[node] += cost.ranks.back().bytes_neck_in;
    cost.bound_us = std::max(cost.bound_us, cost.ranks.back().core_us);
  }
  for (std::size_t node = 0; node < cost.neck_out.size(); ++node) {
    const auto busiest = static_cast<double>(std::max(cost.neck_out[node], cost.neck_in[node]));
    cost.bound_us = std::max(cost.bound_us, busiest / kMib * topology.between().beta_us_per_mib);
  }
  return cost;
}

}  // namespace isthmus
