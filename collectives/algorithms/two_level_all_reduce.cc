#include "collectives/algorithms/two_level_cross.h"
#include "collectives/algorithms/two_level_lanes.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStaged = 1;

// Shows the first rank of each node its local ranks' data in slots; `cross` makes the total of them
// in scratch, or in the slot `result`, on that rank, which shows it.
template <typename Cross>
Result<Schedule> by_leaders(Builder b, Cross cross) {
  const Place operand = b.slot(0);
  const Place result = b.slot(1);
  if (b.local() != 0) {
    b.copy(operand, Builder::input(0), 0, 1);
  }
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  if (b.local() != 0) {
    b.await(kStaged, 1, 0, 1);
    b.copy(Builder::output(0), Builder::of_local(result, 0), 0, 1);
    return b.build();
  }
  cross(b, operand, result);
  b.publish(kStaged, 1);
  b.copy(Builder::output(0), result, 0, 1);
  return b.build();
}

}  // namespace

Result<Schedule> leader_all_reduce(const Request& request) {
  const Nodes nodes(request);
  return by_leaders(start_schedule(request, OpKind::kAllReduce, "leader_all_reduce", {}, true),
                    [&](Builder& b, Place operand, Place result) {
                      b.reduce_locals(Builder::scratch(nodes.own()), operand, 0, 1, true, false);
                      for (std::uint32_t step = 1; step < nodes.count(); ++step) {
                        const std::uint32_t to = nodes.after(step);
                        const std::uint32_t from = nodes.after(nodes.count() - step);
                        b.send(nodes.rank_at(to, 0), Builder::scratch(nodes.own()), 0, 1);
                        b.recv(nodes.rank_at(from, 0), Builder::scratch(from), 0, 1);
                      }
                      b.reduce_units(result, Builder::scratch(0), nodes.count(), kNoOwnOperand, 0,
                                     1, true);
                    });
}

Result<Schedule> leader_doubling_all_reduce(const Request& request) {
  const InTurn cross(request, 0);
  return by_leaders(
      start_schedule(request, OpKind::kAllReduce, "leader_doubling_all_reduce", {}, true),
      [&](Builder& b, Place operand, Place result) {
        cross.run(b, operand, 0, 0);
        b.copy(result, Builder::scratch(InTurn::result()), 0, 1);
      });
}

Result<Schedule> lanes_all_reduce(const Request& request) {
  return Lanes<SplitSlices>(request, "lanes_all_reduce").build();
}

Result<Schedule> exchange_all_reduce(const Request& request) {
  return Lanes<WholeSlices>(request, "exchange_all_reduce").build();
}

Result<Schedule> halving_lanes_all_reduce(const Request& request) {
  return Lanes<HalvedSlices>(request, "halving_lanes_all_reduce").build();
}

}  // namespace isthmus
