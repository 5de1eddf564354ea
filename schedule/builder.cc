#include "schedule/builder.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/hash.h"
#include "schedule/dependencies.h"

namespace isthmus {

namespace {

// A joint step pays off once more steps than this would be named by every write of the output.
constexpr std::size_t kGateWithoutJoint = 4;

bool is_caller(Space space) {
  return space == Space::kInput || space == Space::kOutput;
}

}  // namespace

PeerCounts::Slot& PeerCounts::find(std::uint32_t peer) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = mix64(peer) & mask;
  while (slots_[at].peer_plus_one != 0 && slots_[at].peer_plus_one != peer + 1) {
    at = (at + 1) & mask;
  }
  return slots_[at];
}

std::uint32_t PeerCounts::next(std::uint32_t peer) {
  if (2 * used_ >= slots_.size()) {
    std::vector<Slot> before(std::max<std::size_t>(16, 2 * slots_.size()));
    std::swap(before, slots_);
    for (const Slot& slot : before) {
      if (slot.peer_plus_one != 0) {
        find(slot.peer_plus_one - 1) = slot;
      }
    }
  }
  Slot& slot = find(peer);
  if (slot.peer_plus_one == 0) {
    slot.peer_plus_one = peer + 1;
    ++used_;
  }
  return slot.count++;
}

Builder::Builder(const Shape& shape) {
  ISTHMUS_CHECK(shape.rank < shape.ranks && shape.local < shape.locals, "a rank is in its group");
  schedule_.op = shape.op;
  schedule_.rank = shape.rank;
  schedule_.ranks = shape.ranks;
  schedule_.local = shape.local;
  schedule_.locals = shape.locals;
  schedule_.root = shape.root;
  schedule_.algorithm = shape.algorithm;
  schedule_.partition = shape.partition;
  schedule_.in_order = false;
}

void Builder::append(const Step& step) {
  if (schedule_.steps.size() >= kStepsMax) {
    overflow_ = true;
    return;
  }
  const bool operands_in_a_row =
      step.kind == StepKind::kReduce && step.src.space == Space::kScratch && step.count > 1;
  note_units(step.dst, step, 1);
  note_units(step.src, step, operands_in_a_row ? step.count : 1);
  if (step.own_input) {
    note_units(input(step.begin), step, 1);
  }
  too_many_operands_ |= step.kind == StepKind::kReduce && step.count > kReduceOperandsMax;
  acquires_ += step.kind == StepKind::kRecv || step.kind == StepKind::kAwait ? 1 : 0;
  schedule_.steps.push_back(step);
}

// Widens the units that the run must provide, and notes spans that have no address.
void Builder::note_units(const Place& place, const Step& step, std::uint32_t spans) {
  if (place.space == Space::kNone) {
    return;
  }
  const std::uint32_t length = step.end - step.begin;
  const Partition& partition = schedule_.partition;
  if (step.end < step.begin || step.end > partition.marks()) {
    unaddressable_ = true;
    return;
  }
  if (is_caller(place.space)) {
    unaddressable_ |= place.at + length > schedule_.caller_marks(place.space);
    return;
  }
  if (is_exposed(place.space)) {
    return;  // in marks of its owner, of which verify() knows
  }
  const std::uint32_t block = step.begin >> partition.pieces_log2;
  const bool leaves_block =
      length > 1 && ((step.end - 1) >> partition.pieces_log2) != block && partition.ranked;
  unaddressable_ |= leaves_block;
  const std::uint32_t units = place.at + length * spans;
  if (place.space == Space::kScratch) {
    schedule_.scratch_units = std::max(schedule_.scratch_units, units);
  } else if (place.space == Space::kSlot) {
    schedule_.slot_units = std::max(schedule_.slot_units, units);
  } else if (place.space == Space::kStage) {
    schedule_.stage_units = std::max(schedule_.stage_units, units);
  } else {
    schedule_.uses_line = true;
    unaddressable_ |= units > 1;
  }
}

void Builder::send(std::uint32_t peer, Place src, std::uint32_t begin, std::uint32_t end) {
  Step step;
  step.kind = StepKind::kSend;
  step.peer = peer;
  step.value = sent_.next(peer);
  step.begin = begin;
  step.end = end;
  step.src = src;
  append(step);
}

void Builder::recv(std::uint32_t peer, Place dst, std::uint32_t begin, std::uint32_t end) {
  Step step;
  step.kind = StepKind::kRecv;
  step.peer = peer;
  step.value = received_.next(peer);
  step.begin = begin;
  step.end = end;
  step.dst = dst;
  append(step);
}

void Builder::copy(Place dst, Place src, std::uint32_t begin, std::uint32_t end) {
  Step step;
  step.kind = StepKind::kCopy;
  step.begin = begin;
  step.end = end;
  step.dst = dst;
  step.src = src;
  append(step);
}

void Builder::reduce(Place dst, Place src, std::uint32_t begin, std::uint32_t end, bool finish,
                     bool src_first) {
  Step step;
  step.kind = StepKind::kReduce;
  step.src_first = src_first;
  step.finish = finish;
  step.begin = begin;
  step.end = end;
  step.dst = dst;
  step.src = src;
  append(step);
}

void Builder::reduce_locals(Place dst, Place src, std::uint32_t begin, std::uint32_t end,
                            bool own_input, bool finish) {
  Step step;
  step.kind = StepKind::kReduce;
  step.finish = finish;
  step.own_input = own_input;
  step.count = schedule_.locals;
  step.begin = begin;
  step.end = end;
  step.dst = dst;
  step.src = of_local(src, 0);
  append(step);
}

// A step's seven facts, as in the other calls of this kind.
// NOLINTNEXTLINE(readability-function-size)
void Builder::reduce_units(Place dst, Place src, std::uint32_t count, std::uint32_t own,
                           std::uint32_t begin, std::uint32_t end, bool finish) {
  Step step;
  step.kind = StepKind::kReduce;
  step.finish = finish;
  step.own_input = own < count;
  step.count = count;
  step.begin = begin;
  step.end = end;
  step.dst = dst;
  step.src = of_local(src, step.own_input ? own : 0);
  append(step);
}

void Builder::publish(std::uint8_t line, std::uint32_t value) {
  Step step;
  step.kind = StepKind::kPublish;
  step.line = line;
  step.value = value;
  append(step);
}

void Builder::await(std::uint8_t line, std::uint32_t value, std::uint32_t first,
                    std::uint32_t count) {
  if (count == 0 || (count == 1 && first == local())) {
    return;  // nobody but this rank: nothing to wait for
  }
  Step step;
  step.kind = StepKind::kAwait;
  step.line = line;
  step.peer = first;
  step.count = count;
  step.value = value;
  append(step);
}

void Builder::signal(std::uint32_t peer) {
  send(peer, {}, 0, 0);
}

void Builder::wait_signal(std::uint32_t peer) {
  recv(peer, {}, 0, 0);
}

void Builder::gate_output() {
  if (acquires_ > kGateWithoutJoint && !schedule_.in_order) {
    Step joint;
    joint.kind = StepKind::kAwait;
    append(joint);
  }
  gate_ = schedule_.steps.size();
}

Result<Schedule> Builder::build() {
  const auto refuse = [this](std::string_view why) {
    return Error{Code::kInvalidArgument, 0, -1,
                 fmt::format("The algorithm {} made no valid schedule for rank {} of {}: {}.",
                             schedule_.algorithm, schedule_.rank, schedule_.ranks, why)};
  };
  if (overflow_) {
    return refuse(fmt::format("it has more than {} steps", kStepsMax));
  }
  if (too_many_operands_) {
    return refuse(fmt::format("a Reduce has more than {} operands", kReduceOperandsMax));
  }
  if (unaddressable_) {
    return refuse("a step's marks lie outside the data, or span blocks in a unit-addressed space");
  }
  if (!schedule_.in_order) {
    infer_dependencies(&schedule_, gate_);
  }
  return std::move(schedule_);
}

}  // namespace isthmus
