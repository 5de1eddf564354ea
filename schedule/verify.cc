#include "schedule/verify.h"

#include <array>
#include <vector>

#include <fmt/format.h>

#include "schedule/dependencies.h"
#include "schedule/verify_order.h"
#include "schedule/verify_run.h"

namespace isthmus {

namespace proof {

namespace {

// Uses of one slot's memory are this many operations apart: kSlotRing of transport/mapped.h.
constexpr std::uint32_t kSlotDistance = 4;

std::uint32_t units_of(const Schedule& schedule, Space space) {
  switch (space) {
    case Space::kScratch:
      return schedule.scratch_units;
    case Space::kLine:
      return schedule.uses_line ? 1 : 0;
    case Space::kSlot:
      return schedule.slot_units;
    default:
      return schedule.stage_units;
  }
}

// Another rank's buffer, which only a step of an exposing schedule reads.
Status check_exposed_place(const Schedule& schedule, const Schedule& owner, std::size_t index,
                           const Place& place, bool written) {
  const Step& step = schedule.steps[index];
  const std::uint32_t length = step.end - step.begin;
  if (!written && place.local == schedule.local) {
    return fault(schedule, index, "a peer's buffer is another rank's");
  }
  if (schedule.exposure == Exposure::kNone || !schedule.in_order) {
    return fault(schedule, index, "its schedule does not expose buffers, or is not in order");
  }
  if (step.kind != StepKind::kCopy && schedule.exposure != Exposure::kMapped) {
    return fault(schedule, index, "a buffer that is pulled can only be copied");
  }
  const Place own = owner_place(place);
  const std::uint32_t marks = owner.caller_marks(own.space);
  if (place.at > marks || length > marks - place.at) {
    return fault(schedule, index, "a span leaves the peer's buffer");
  }
  // As in pair(): a block of an all_to_all has another number where it arrives.
  const bool same = op_traits(schedule.op).in_place
                        ? caller_mark(owner, own) == step.begin
                        : (place.at - step.begin) % schedule.partition.pieces() == 0;
  if (!same && length > 0) {
    return fault(schedule, index, "a span of a peer's buffer has another length than its marks");
  }
  return {};
}

// A span of a caller's buffer has the same length as the step's marks for every byte count.
Status check_caller_place(const Schedule& schedule, std::size_t index, const Place& place) {
  const Step& step = schedule.steps[index];
  const std::uint32_t length = step.end - step.begin;
  const std::uint32_t marks = schedule.caller_marks(place.space);
  if (place.at > marks || length > marks - place.at) {
    return fault(schedule, index, "a span leaves the caller's buffer");
  }
  // Blocks may differ in length: a span has the length of just these marks.
  const bool same = op_traits(schedule.op).in_place ? caller_mark(schedule, place) == step.begin
                                                    : place.at == step.begin;
  if (!same && length > 0) {
    return fault(schedule, index, "a span of a caller's buffer has another length than its marks");
  }
  return {};
}

Status check_place(std::span<const Schedule> schedules, const Topology& topology,
                   const Schedule& schedule, std::size_t index, const Place& place, bool written);

// A result that goes to every rank's output.
Status check_everyone(std::span<const Schedule> schedules, const Topology& topology,
                      const Schedule& schedule, std::size_t index, const Place& place) {
  if (schedule.steps[index].kind != StepKind::kReduce || place.space != Space::kPeerOutput) {
    return fault(schedule, index, "only a Reduce writes to every rank, and to its output");
  }
  for (std::uint32_t local = 0; local < schedule.locals; ++local) {
    ISTHMUS_TRY(
        check_place(schedules, topology, schedule, index, {place.space, local, place.at}, true));
  }
  return {};
}

Status check_place(std::span<const Schedule> schedules, const Topology& topology,
                   const Schedule& schedule, std::size_t index, const Place& place, bool written) {
  const Step& step = schedule.steps[index];
  const std::uint32_t length = step.end - step.begin;
  if (place.space == Space::kNone) {
    const bool moves = step.kind == StepKind::kCopy || step.kind == StepKind::kReduce;
    return moves || length > 0 ? Status(fault(schedule, index, "it has bytes, but no place"))
                               : Status();
  }
  if (place.space > Space::kPeerOutput) {
    return fault(schedule, index, "there is no such space");
  }
  if (place.space == Space::kInput && written) {
    return fault(schedule, index, "it writes the input");
  }
  if (place.space == Space::kInput || place.space == Space::kOutput) {
    return check_caller_place(schedule, index, place);
  }
  if (written && place.local == kEveryone) {
    return check_everyone(schedules, topology, schedule, index, place);
  }
  const Schedule* owner = &schedule;
  if (has_owner(place.space)) {
    if (place.local >= schedule.locals) {
      return fault(schedule, index, "its node has no such local rank");
    }
    const int node = topology.node_of(static_cast<int>(schedule.rank));
    if (schedule.locals > 1) {
      owner = &schedules[static_cast<std::size_t>(topology.members(node)[place.local])];
    }
  }
  if (is_exposed(place.space)) {
    return check_exposed_place(schedule, *owner, index, place, written);
  }
  if (is_mapped(place.space) && written && place.local != schedule.local) {
    return fault(schedule, index, "it writes another rank's memory");
  }
  const std::uint32_t pieces = schedule.partition.pieces();
  if (schedule.partition.ranked && length > 1 && step.begin / pieces != (step.end - 1) / pieces) {
    return fault(schedule, index, "a span of several blocks has no address in units");
  }
  const std::uint32_t units = units_of(*owner, place.space);
  if (place.at > units || length > units - place.at) {
    return fault(schedule, index,
                 fmt::format("its {} has only {} units", space_name(place.space), units));
  }
  return {};
}

Status check_reduce(std::span<const Schedule> schedules, const Topology& topology,
                    const Schedule& schedule, std::size_t index) {
  const Step& step = schedule.steps[index];
  if (step.count > kReduceOperandsMax) {
    return fault(schedule, index, "it has more operands than a kernel takes");
  }
  if (step.count == 0) {
    ISTHMUS_TRY(check_place(schedules, topology, schedule, index, step.src, false));
  } else if (has_owner(step.src.space)) {
    if (step.src.local + step.count > schedule.locals) {
      return fault(schedule, index, "its node has fewer local ranks");
    }
    for (std::uint32_t k = 0; k < step.count; ++k) {
      const bool own = step.src.local + k == schedule.local;
      if (!step.own_input || !own) {
        const Place operand = {step.src.space, step.src.local + k, step.src.at};
        ISTHMUS_TRY(check_place(schedules, topology, schedule, index, operand, false));
      }
    }
  } else if (step.src.space == Space::kScratch) {
    const std::uint32_t length = step.end - step.begin;
    for (std::uint32_t k = 0; k < step.count; ++k) {
      const Place operand = {Space::kScratch, 0, step.src.at + k * length};
      ISTHMUS_TRY(check_place(schedules, topology, schedule, index, operand, false));
    }
    if (step.own_input && step.src.local >= step.count) {
      return fault(schedule, index, "its own operand is none of its operands");
    }
  } else {
    return fault(schedule, index, "several operands lie in mapped memory or scratch only");
  }
  if (step.own_input) {
    ISTHMUS_TRY(
        check_place(schedules, topology, schedule, index, {Space::kInput, 0, step.begin}, false));
  }
  if (is_exposed(step.dst.space) && step.dst.local != kEveryone) {
    return fault(schedule, index, "it writes another rank's output only");
  }
  return check_place(schedules, topology, schedule, index, step.dst, true);
}

Status check_step(std::span<const Schedule> schedules, const Topology& topology,
                  const Schedule& schedule, std::size_t index) {
  const Step& step = schedule.steps[index];
  if (step.begin > step.end || step.end > schedule.partition.marks()) {
    return fault(schedule, index, "its marks lie outside the data");
  }
  switch (step.kind) {
    case StepKind::kSend:
    case StepKind::kRecv:
      if (step.peer >= schedule.ranks || step.peer == schedule.rank) {
        return fault(schedule, index, "its peer is no other rank of the group");
      }
      return check_place(schedules, topology, schedule, index,
                         step.kind == StepKind::kSend ? step.src : step.dst,
                         step.kind == StepKind::kRecv);
    case StepKind::kCopy:
      ISTHMUS_TRY(check_place(schedules, topology, schedule, index, step.src, false));
      if (is_exposed(step.dst.space)) {
        return fault(schedule, index, "it writes another rank's buffer");
      }
      return check_place(schedules, topology, schedule, index, step.dst, true);
    case StepKind::kReduce:
      return check_reduce(schedules, topology, schedule, index);
    case StepKind::kPublish:
      return {};
    case StepKind::kAwait:
      if (step.peer > schedule.locals || step.count > schedule.locals - step.peer) {
        return fault(schedule, index, "its node has fewer local ranks");
      }
      return {};
  }
  return fault(schedule, index, "there is no such kind of step");
}

// A schedule that knows no local ranks, on a node that has some.
Status check_messages_only(const Schedule& schedule) {
  for (std::size_t index = 0; index < schedule.steps.size(); ++index) {
    const Step& step = schedule.steps[index];
    const bool joint = step.kind == StepKind::kAwait && step.count == 0;
    const bool line = step.kind == StepKind::kPublish || step.kind == StepKind::kAwait;
    if (has_owner(step.dst.space) || has_owner(step.src.space) || (line && !joint)) {
      return fault(schedule, index, "the schedule has no local ranks, but uses mapped memory");
    }
  }
  return {};
}

Status check_identity(const Schedule& first, const Schedule& schedule, std::uint32_t rank,
                      const Topology& topology) {
  const std::size_t whole = schedule.steps.size();
  if (schedule.rank != rank || schedule.ranks != static_cast<std::uint32_t>(topology.ranks())) {
    return fault(schedule, whole,
                 fmt::format("it stands for rank {} of {}", rank, topology.ranks()));
  }
  if (schedule.op != first.op || schedule.partition != first.partition ||
      (op_traits(schedule.op).rooted && schedule.root != first.root)) {
    return fault(schedule, whole, "rank 0 has another operation, partition or root");
  }
  if (schedule.exposure != first.exposure) {
    return fault(schedule, whole, "rank 0 exposes its buffers in another way");
  }
  const std::uint32_t blocks = schedule.partition.blocks;
  const bool shared = op_traits(schedule.op).shards && blocks > 0 && schedule.ranks % blocks == 0;
  if (schedule.partition.ranked && blocks != schedule.ranks && !shared) {
    return fault(schedule, whole, "a ranked partition has one block per rank");
  }
  const auto local = static_cast<std::uint32_t>(topology.local_of(static_cast<int>(rank)));
  const auto locals = static_cast<std::uint32_t>(topology.locals_of(static_cast<int>(rank)));
  const bool alone = schedule.local == 0 && schedule.locals == 1;
  if (!alone && (schedule.local != local || schedule.locals != locals)) {
    return fault(schedule, whole,
                 fmt::format("the topology has it as local {} of {}", local, locals));
  }
  if (!alone && !topology.mapped(topology.node_of(static_cast<int>(rank)))) {
    return fault(schedule, whole, "its node's ranks do not share memory");
  }
  if (alone && locals > 1) {
    return check_messages_only(schedule);
  }
  return {};
}

Result<std::vector<LocalOrder>> orders_of(std::span<const Schedule> schedules) {
  std::vector<LocalOrder> orders;
  orders.reserve(schedules.size());
  for (const Schedule& schedule : schedules) {
    ISTHMUS_ASSIGN(LocalOrder order, LocalOrder::make(schedule));
    orders.push_back(std::move(order));
  }
  return orders;
}

}  // namespace

Status check_shape(std::span<const Schedule> schedules, const Topology& topology) {
  if (schedules.empty() || schedules.size() != static_cast<std::size_t>(topology.ranks())) {
    return Error{
        Code::kInternal, 0, -1,
        fmt::format("There are {} schedules for {} ranks.", schedules.size(), topology.ranks())};
  }
  for (std::uint32_t rank = 0; rank < schedules.size(); ++rank) {
    ISTHMUS_TRY(check_identity(schedules[0], schedules[rank], rank, topology));
  }
  for (const Schedule& schedule : schedules) {
    for (std::size_t index = 0; index < schedule.steps.size(); ++index) {
      ISTHMUS_TRY(check_step(schedules, topology, schedule, index));
    }
  }
  return {};
}

}  // namespace proof

Status verify(std::span<const Schedule> schedules, const Topology& topology, Delivery delivery) {
  ISTHMUS_TRY(proof::check_shape(schedules, topology));
  ISTHMUS_ASSIGN(const std::vector<proof::LocalOrder> orders, proof::orders_of(schedules));
  const std::array operations = {proof::Operation{schedules, orders, 0}};
  return proof::Run(operations, topology, delivery).run();
}

Status verify_pair(std::span<const Schedule> first, std::span<const Schedule> second,
                   const Topology& topology, Delivery delivery) {
  ISTHMUS_TRY(proof::check_shape(first, topology));
  ISTHMUS_TRY(proof::check_shape(second, topology));
  ISTHMUS_ASSIGN(const std::vector<proof::LocalOrder> first_orders, proof::orders_of(first));
  ISTHMUS_ASSIGN(const std::vector<proof::LocalOrder> second_orders, proof::orders_of(second));
  for (const bool swapped : {false, true}) {
    // a b b b b: the last one takes the slot of the first, and a b b b a.
    const proof::Operation a = {swapped ? second : first, swapped ? second_orders : first_orders,
                                0};
    const proof::Operation b = {swapped ? first : second, swapped ? first_orders : second_orders,
                                0};
    for (const proof::Operation& last : {a, b}) {
      std::vector<proof::Operation> operations = {a, b, b, b, last};
      for (std::uint32_t i = 0; i < operations.size(); ++i) {
        operations[i].slot = i % proof::kSlotDistance;
      }
      ISTHMUS_TRY(proof::Run(operations, topology, delivery).run());
    }
  }
  return {};
}

}  // namespace isthmus
