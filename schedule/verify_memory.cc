// Memory and results of proof::Run.

#include <algorithm>

#include <fmt/format.h>

#include "base/hash.h"
#include "schedule/dependencies.h"
#include "schedule/verify_run.h"

namespace isthmus::proof {

Run::Value Run::word(std::uint32_t rank, std::uint32_t mark) {
  const std::uint64_t bits = mix64(((static_cast<std::uint64_t>(rank) + 1) << 32) | mark);
  return {bits, mix64(bits)};
}

// Contributions add up in any order; the second hash tells (a, b) from (b, a) and ((a, b), c) from
// (a, (b, c)).
Run::Value Run::combine(const Value& a, const Value& b) {
  return {a.sum + b.sum, mix64(a.order + 0x9e3779b97f4a7c15ULL * mix64(b.order))};
}

// Not linear: nothing can be added to a finished value unnoticed.
Run::Value Run::finished(const Value& value) {
  return {mix64(value.sum ^ 0xa5a5a5a5a5a5a5a5ULL), mix64(value.order + 1)};
}

Run::Ref Run::ref(const Part& part, const Place& place) const {
  const std::size_t marks = part.schedule->partition.marks();
  switch (place.space) {
    case Space::kInput:
      return {part.caller + marks + place.at, part.caller + caller_mark(*part.schedule, place)};
    case Space::kOutput:
      return {part.caller + 2 * marks + place.at, part.caller + caller_mark(*part.schedule, place)};
    case Space::kScratch:
      return {part.scratch + place.at, part.scratch + place.at};
    default:
      break;
  }
  const std::span<const int> members =
      topology_.members(topology_.node_of(static_cast<int>(part.rank)));
  const auto owner_rank = static_cast<std::uint32_t>(members[place.local]);
  const Part& owner = parts_[part.operation * ranks_ + owner_rank];
  if (is_exposed(place.space)) {
    return ref(owner, owner_place(place));
  }
  const std::size_t base = place.space == Space::kLine   ? owner.line
                           : place.space == Space::kSlot ? owner.slot
                                                         : owner.stage;
  return {base + place.at, base + place.at};
}

bool Run::ordered(std::uint32_t earlier, std::uint32_t later) {
  const Part& a = part_of(earlier);
  const Part& b = part_of(later);
  if (a.rank == b.rank) {
    return a.operation != b.operation
               ? a.operation < b.operation
               : a.order->before(earlier - a.first_node, later - b.first_node);
  }
  const int node = topology_.node_of(static_cast<int>(a.rank));
  if (node != topology_.node_of(static_cast<int>(b.rank))) {
    return false;
  }
  // A later operation of the rank begins when this one is over: its first Publish tells of it too.
  std::uint32_t released = a.order->released(earlier - a.first_node);
  if (released == kNone) {
    const std::size_t next = (a.operation + 1) * ranks_ + a.rank;
    released = next < parts_.size() ? parts_[next].first_event : kNone;
  } else {
    released += a.first_event;
  }
  std::uint32_t acquired = b.order->acquired(later - b.first_node);
  if (acquired == kNone) {
    acquired = b.first_event > 0 ? b.first_event - 1 : kNone;
  } else {
    acquired += b.first_event;
  }
  if (released == kNone || acquired == kNone) {
    return false;
  }
  const auto width = static_cast<std::size_t>(topology_.locals(node));
  const auto local = static_cast<std::size_t>(topology_.local_of(static_cast<int>(a.rank)));
  return clocks_[b.rank][acquired * width + local] > released;
}

Status Run::read(std::uint32_t node, const Place& place, std::uint32_t length) {
  if (place.space == Space::kNone) {
    return {};
  }
  if (is_exposed(place.space)) {
    ISTHMUS_TRY(note_peer_access(node, place));
  }
  const std::size_t first = ref(part_of(node), place).cell;
  for (std::size_t cell = first; cell < first + length; ++cell) {
    const std::uint32_t writer = writer_[cell];
    if (writer != kNone && writer != node && !ordered(writer, node)) {
      const Part& other = part_of(writer);
      return fault_at(node,
                      fmt::format("a race: rank {}'s step {} ({}) writes what it reads", other.rank,
                                  writer - other.first_node, describe(step_of(writer))));
    }
    readers_.push_back({node, readers_head_[cell]});
    readers_head_[cell] = static_cast<std::uint32_t>(readers_.size() - 1);
  }
  return {};
}

// Another rank's buffer is there from its announcement on. check_returns() looks how long.
Status Run::note_peer_access(std::uint32_t node, const Place& place) {
  const Part& part = part_of(node);
  const std::span<const int> members =
      topology_.members(topology_.node_of(static_cast<int>(part.rank)));
  const auto owner = static_cast<std::uint32_t>(members[place.local]);
  if ((known(node)[owner / 64] >> (owner % 64) & 1U) == 0) {
    return fault_at(node, fmt::format("it uses rank {}'s buffer before that rank is known to have "
                                      "started",
                                      owner));
  }
  if (owner != part.rank) {
    peer_accesses_.push_back({node, part.operation * ranks_ + owner});
  }
  return {};
}

// Every use of a rank's buffers by others is over, and known to be, when its operation ends: the
// caller may write them then.
Status Run::check_returns() {
  for (const PeerAccess& one : peer_accesses_) {
    const Part& reader = part_of(one.node);
    const Part& owner = parts_[one.owner];
    const std::uint32_t released = reader.order->released(one.node - reader.first_node);
    const std::size_t events = owner.order->events().size();
    const int node = topology_.node_of(static_cast<int>(owner.rank));
    const auto width = static_cast<std::size_t>(topology_.locals(node));
    const auto local = static_cast<std::size_t>(topology_.local_of(static_cast<int>(reader.rank)));
    const std::size_t last = (owner.first_event + events - 1) * width + local;
    if (released == kNone || events == 0 ||
        clocks_[owner.rank][last] <= reader.first_event + released) {
      return fault_at(
          one.node,
          fmt::format("rank {} may return while its buffer is still in use here", owner.rank));
    }
  }
  return {};
}

Status Run::write(std::uint32_t node, const Place& place, std::uint32_t length) {
  if (place.space == Space::kNone) {
    return {};
  }
  if (is_exposed(place.space)) {
    ISTHMUS_TRY(note_peer_access(node, place));
  }
  const std::size_t first = ref(part_of(node), place).cell;
  for (std::size_t cell = first; cell < first + length; ++cell) {
    const auto check = [&](std::uint32_t other, std::string_view does) -> Status {
      if (other == kNone || other == node || ordered(other, node)) {
        return {};
      }
      const Part& part = part_of(other);
      return fault_at(node,
                      fmt::format("a race: rank {}'s step {} ({}) {} what it writes", part.rank,
                                  other - part.first_node, describe(step_of(other)), does));
    };
    ISTHMUS_TRY(check(writer_[cell], "writes"));
    for (std::uint32_t at = readers_head_[cell]; at != kNone; at = readers_[at].next) {
      ISTHMUS_TRY(check(readers_[at].node, "reads"));
    }
    writer_[cell] = node;
    readers_head_[cell] = kNone;
  }
  return {};
}

// The output is written: every rank (of what comes from a root: that) must be known to have
// started.
Status Run::check_gate(std::uint32_t node, const std::uint64_t* more) {
  const Schedule& schedule = *part_of(node).schedule;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const std::uint64_t word = known(node)[rank / 64] | (more == nullptr ? 0 : more[rank / 64]);
    const bool needed = !op_traits(schedule.op).from_root() || rank == schedule.root;
    if (needed && (word >> (rank % 64) & 1U) == 0) {
      return fault_at(
          node, fmt::format("it writes the output before rank {} is known to have started", rank));
    }
  }
  return {};
}

Status Run::copy(std::uint32_t node) {
  const Step& step = step_of(node);
  const Part& part = part_of(node);
  const std::uint32_t length = step.end - step.begin;
  ISTHMUS_TRY(read(node, step.src, length));
  const bool moves = step.src.space != Space::kNone && step.dst.space != Space::kNone;
  // In place nothing is written where both are one memory. Having read, it is still ordered with
  // whatever writes there, which is all that matters where they are apart.
  if (!moves || ref(part, step.src).cell != ref(part, step.dst).cell) {
    ISTHMUS_TRY(write(node, step.dst, length));
  }
  if (step.dst.space == Space::kOutput) {
    ISTHMUS_TRY(check_gate(node, nullptr));
  }
  if (!moves) {
    return {};
  }
  const Ref from = ref(part, step.src);
  const Ref to = ref(part, step.dst);
  const std::size_t distance = std::max(from.cell, to.cell) - std::min(from.cell, to.cell);
  if (distance != 0 && distance < length) {
    return fault_at(node, "its source and destination overlap");
  }
  for (std::uint32_t i = 0; i < length; ++i) {
    values_[0][to.apart + i] = values_[0][from.apart + i];
    values_[1][to.cell + i] = values_[1][from.cell + i];
  }
  return {};
}

// Where operand number `number` of a Reduce lies.
Place Run::operand_place(const Part& part, const Step& step, std::uint32_t number) const {
  if (step.count == 0) {
    return (number == 0) != step.src_first ? step.dst : step.src;
  }
  const bool mapped = has_owner(step.src.space);
  const bool own =
      mapped ? step.src.local + number == part.schedule->local : number == step.src.local;
  if (step.own_input && own) {
    return {Space::kInput, 0, step.begin};
  }
  return mapped ? Place{step.src.space, step.src.local + number, step.src.at}
                : Place{step.src.space, 0, step.src.at + number * (step.end - step.begin)};
}

Status Run::read_operands(std::uint32_t node) {
  const Step& step = step_of(node);
  const Part& part = part_of(node);
  const std::uint32_t length = step.end - step.begin;
  const std::uint32_t count = step.count == 0 ? 2 : step.count;
  operands_[0].clear();
  operands_[1].clear();
  for (std::uint32_t number = 0; number < count; ++number) {
    const Place place = operand_place(part, step, number);
    ISTHMUS_TRY(read(node, place, length));
    const Ref from = ref(part, place);
    for (std::uint32_t i = 0; i < length; ++i) {
      operands_[0].push_back(values_[0][from.apart + i]);
      operands_[1].push_back(values_[1][from.cell + i]);
    }
  }
  return {};
}

// A Reduce has one destination, or that mark of every local rank's output.
Status Run::reduce(std::uint32_t node) {
  const Step& step = step_of(node);
  ISTHMUS_TRY(read_operands(node));
  if (step.dst.space == Space::kOutput || is_exposed(step.dst.space)) {
    ISTHMUS_TRY(check_gate(node, nullptr));
  }
  if (step.dst.local != kEveryone) {
    return store_result(node, step.dst);
  }
  for (std::uint32_t local = 0; local < part_of(node).schedule->locals; ++local) {
    ISTHMUS_TRY(store_result(node, {step.dst.space, local, step.dst.at}));
  }
  return {};
}

Status Run::store_result(std::uint32_t node, const Place& place) {
  const Step& step = step_of(node);
  const std::uint32_t length = step.end - step.begin;
  const std::uint32_t count = step.count == 0 ? 2 : step.count;
  ISTHMUS_TRY(write(node, place, length));
  const Ref to = ref(part_of(node), place);
  for (int variant = 0; variant < 2; ++variant) {
    const std::size_t first = variant == 0 ? to.apart : to.cell;
    for (std::uint32_t i = 0; i < length; ++i) {
      Value result = operands_[variant][i];
      for (std::uint32_t k = 1; k < count; ++k) {
        result = combine(result, operands_[variant][k * length + i]);
      }
      if (count > 2) {
        result.order = mix64(result.order + count);  // rounds once, unlike a chain of pairs
      }
      values_[variant][first + i] = step.finish ? finished(result) : result;
    }
  }
  return {};
}

Status Run::take_message(std::uint32_t send, std::uint32_t recv) {
  const Step& step = step_of(recv);
  const std::uint32_t length = step.end - step.begin;
  const std::uint64_t* theirs = known(send);
  if (step.dst.space == Space::kOutput) {
    ISTHMUS_TRY(check_gate(recv, theirs));
  }
  for (std::size_t word = 0; word < known_words_; ++word) {
    known(recv)[word] |= theirs[word];
  }
  ISTHMUS_TRY(write(recv, step.dst, length));
  for (std::uint32_t i = 0; step.dst.space != Space::kNone && i < length; ++i) {
    const Ref to = ref(part_of(recv), {step.dst.space, step.dst.local, step.dst.at + i});
    values_[0][to.apart] = messages_[0][payload_[send] + i];
    values_[1][to.cell] = messages_[1][payload_[send] + i];
  }
  return {};
}

Status Run::check_results(std::uint32_t operation) {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const Part& part = parts_[operation * ranks_ + rank];
    const Schedule& schedule = *part.schedule;
    if (schedule.op == OpKind::kBarrier) {
      ISTHMUS_TRY(check_started(part));
      continue;
    }
    const std::uint32_t marks = schedule.caller_marks(Space::kOutput);
    for (std::uint32_t mark = 0; mark < marks; ++mark) {
      ISTHMUS_TRY(check_mark(part, mark));
    }
  }
  return {};
}

// A barrier is over: everyone must be known to have started.
Status Run::check_started(const Part& part) {
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    bool seen = rank == part.rank;
    for (std::uint32_t step = 0; step < part.schedule->steps.size() && !seen; ++step) {
      seen = (known(part.first_node + step)[rank / 64] >> (rank % 64) & 1U) != 0;
    }
    if (!seen) {
      return fault(*part.schedule, part.schedule->steps.size(),
                   fmt::format("the barrier ends before rank {} is known to have started", rank));
    }
  }
  return {};
}

// What a mark of the output must end with; of a reduction only the sum, before it is finished.
Run::Value Run::expected(const Part& part, std::uint32_t mark) const {
  const Schedule& schedule = *part.schedule;
  const OpTraits& traits = op_traits(schedule.op);
  const std::uint32_t pieces = schedule.partition.pieces();
  const std::uint32_t own_block = schedule.own_block() * pieces;
  const std::uint32_t whole_mark = traits.output_block ? own_block + mark : mark;
  if (traits.reduces) {
    Value sum;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      sum.sum += word(rank, whole_mark).sum;
    }
    return sum;
  }
  if (traits.from_root()) {
    return word(schedule.root, whole_mark);
  }
  // A block of each rank: its own, or the one that it has for this rank.
  return word(mark / pieces, (traits.input_block ? 0 : own_block) + mark % pieces);
}

Status Run::check_mark(const Part& part, std::uint32_t mark) {
  const Schedule& schedule = *part.schedule;
  const Ref at = ref(part, {Space::kOutput, 0, mark});
  const Ref at_first = ref(parts_[part.operation * ranks_], {Space::kOutput, 0, mark});
  const Value wanted = expected(part, mark);
  const bool moved = !op_traits(schedule.op).reduces;
  for (int variant = 0; variant < 2; ++variant) {
    const Value& got = values_[variant][variant == 0 ? at.apart : at.cell];
    const std::string_view where = variant == 0 ? "" : ", in place";
    // A lone rank's operand may be copied or reduced.
    const bool reduced = got.sum == finished(wanted).sum || (ranks_ == 1 && got.sum == wanted.sum);
    if (moved ? got != wanted : !reduced) {
      return fault(
          schedule, schedule.steps.size(),
          fmt::format("mark {} of the output does not end with {}{}", mark,
                      moved ? "its source's data" : "every rank's contribution once, finished last",
                      where));
    }
    const Value& first = values_[variant][variant == 0 ? at_first.apart : at_first.cell];
    if (schedule.op == OpKind::kAllReduce && got.order != first.order) {
      return fault(schedule, schedule.steps.size(),
                   fmt::format("mark {} of the output is combined by another tree than on rank 0{}",
                               mark, where));
    }
  }
  return {};
}

}  // namespace isthmus::proof
