#include "collectives/algorithms/alone.h"

namespace isthmus {

namespace {

Partition whole(OpKind op) {
  return {op == OpKind::kAllGather || op == OpKind::kReduceScatter, 1, 0};
}

Result<Schedule> copy_alone(const Request& request, OpKind op) {
  Builder b = start_schedule(request, op, "alone", whole(op), false);
  b.in_order();
  b.copy(Builder::output(0), Builder::input(0), 0, 1);
  return b.build();
}

Result<Schedule> nothing_alone(const Request& request, OpKind op) {
  Builder b = start_schedule(request, op, "alone", whole(op), false);
  b.in_order();
  return b.build();
}

}  // namespace

Result<Schedule> all_reduce_alone(const Request& request) {
  return copy_alone(request, OpKind::kAllReduce);
}

Result<Schedule> all_gather_alone(const Request& request) {
  return copy_alone(request, OpKind::kAllGather);
}

Result<Schedule> reduce_scatter_alone(const Request& request) {
  return copy_alone(request, OpKind::kReduceScatter);
}

Result<Schedule> broadcast_alone(const Request& request) {
  return nothing_alone(request, OpKind::kBroadcast);
}

Result<Schedule> barrier_alone(const Request& request) {
  return nothing_alone(request, OpKind::kBarrier);
}

}  // namespace isthmus
