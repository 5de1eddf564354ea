#include "schedule/verify_run.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace isthmus::proof {

Run::Run(std::span<const Operation> operations, const Topology& topology, Delivery delivery)
    : operations_(operations),
      topology_(topology),
      delivery_(delivery),
      ranks_(static_cast<std::uint32_t>(topology.ranks())),
      known_words_((ranks_ + 63) / 64) {}

Error Run::fault_at(std::uint32_t node, std::string_view what) {
  const Part& part = part_of(node);
  return fault(*part.schedule, node - part.first_node, what);
}

Status Run::run() {
  lay_out();
  for (std::uint32_t operation = 0; operation < operations_.size(); ++operation) {
    ISTHMUS_TRY(pair_messages(operation));
  }
  for (Part& part : parts_) {
    ISTHMUS_TRY(link_awaits(part));
  }
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    begin_part(parts_[rank]);
  }
  while (!ready_.empty()) {
    const std::uint32_t node = ready_.back();
    ready_.pop_back();
    ISTHMUS_TRY(start(node));
  }
  const bool all_over =
      std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.open == 0; });
  if (!all_over) {
    return stuck();
  }
  ISTHMUS_TRY(check_returns());
  for (std::uint32_t operation = 0; operation < operations_.size(); ++operation) {
    ISTHMUS_TRY(check_results(operation));
  }
  return {};
}

void Run::lay_out() {
  std::size_t cells = 0;
  std::uint32_t nodes = 0;
  std::vector<std::uint32_t> events(ranks_, 0);
  std::vector<std::pair<std::size_t, std::size_t>> slots;  // by slot and rank: first cell, units
  const auto take = [&](std::size_t units) { return std::exchange(cells, cells + units); };
  for (const Operation& operation : operations_) {
    slots.resize(std::max<std::size_t>(slots.size(), (operation.slot + 1) * ranks_));
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      std::pair<std::size_t, std::size_t>& slot = slots[operation.slot * ranks_ + rank];
      slot.second = std::max<std::size_t>(slot.second, operation.schedules[rank].slot_units);
    }
  }
  for (auto& [first, units] : slots) {
    first = take(units);
  }
  for (std::uint32_t index = 0; index < operations_.size(); ++index) {
    const Operation& operation = operations_[index];
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      const Schedule& schedule = operation.schedules[rank];
      Part part;
      part.schedule = &schedule;
      part.order = &operation.orders[rank];
      part.operation = index;
      part.rank = rank;
      part.first_node = nodes;
      part.first_event = events[rank];
      part.open = schedule.steps.size();
      part.caller = take(3 * static_cast<std::size_t>(schedule.partition.marks()));
      part.scratch = take(schedule.scratch_units);
      part.line = take(1);
      part.slot = slots[operation.slot * ranks_ + rank].first;
      part.stage = take(schedule.stage_units);
      nodes += static_cast<std::uint32_t>(schedule.steps.size());
      events[rank] += static_cast<std::uint32_t>(part.order->events().size());
      part_index_.resize(nodes, static_cast<std::uint32_t>(parts_.size()));
      parts_.push_back(part);
    }
  }
  pending_.assign(nodes, 0);
  started_.assign(nodes, 0);
  over_.assign(nodes, 0);
  partner_.assign(nodes, kNone);
  payload_.assign(nodes, 0);
  awaits_head_.assign(nodes, kNone);
  known_.assign(nodes * known_words_, 0);
  writer_.assign(cells, kNone);
  readers_head_.assign(cells, kNone);
  clocks_.resize(ranks_);
  for (std::vector<Value>& values : values_) {
    values.resize(cells);
    for (std::size_t cell = 0; cell < cells; ++cell) {
      values[cell] = word(0xfffffff0U, static_cast<std::uint32_t>(cell));  // nobody's
    }
  }
  for (const Part& part : parts_) {
    fill(part);
  }
}

// The caller's data, the dependencies, and what each step knows at least: that its rank has
// started.
void Run::fill(const Part& part) {
  const Schedule& schedule = *part.schedule;
  const bool in_output = schedule.op == OpKind::kBroadcast && part.rank == schedule.root;
  const Space source = in_output ? Space::kOutput : Space::kInput;
  for (std::uint32_t mark = 0; mark < schedule.caller_marks(source); ++mark) {
    const Ref at = ref(part, {source, 0, mark});
    values_[0][at.apart] = word(part.rank, mark);
    values_[1][at.cell] = word(part.rank, mark);
  }
  for (std::uint32_t step = 0; step < schedule.steps.size(); ++step) {
    const std::uint32_t node = part.first_node + step;
    pending_[node] = (schedule.in_order ? (step > 0 ? 1 : 0) : schedule.wait_count[step]);
    known(node)[part.rank / 64] |= 1ULL << (part.rank % 64);
    // Held back until the operation begins on this rank.
    pending_[node] += 1;
  }
}

Status Run::pair_messages(std::uint32_t operation) {
  struct End {
    std::uint64_t lane = 0;
    std::uint32_t number = 0;
    std::uint32_t node = 0;
  };

  std::vector<End> sends;
  std::vector<End> recvs;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const Part& part = parts_[operation * ranks_ + rank];
    for (std::uint32_t index = 0; index < part.schedule->steps.size(); ++index) {
      const Step& step = part.schedule->steps[index];
      if (step.kind == StepKind::kSend) {
        sends.push_back({(static_cast<std::uint64_t>(rank) << 32) | step.peer, step.value,
                         part.first_node + index});
      } else if (step.kind == StepKind::kRecv) {
        recvs.push_back({(static_cast<std::uint64_t>(step.peer) << 32) | rank, step.value,
                         part.first_node + index});
      }
    }
  }
  const auto before = [](const End& a, const End& b) {
    return a.lane != b.lane ? a.lane < b.lane : a.number < b.number;
  };
  std::sort(sends.begin(), sends.end(), before);
  std::sort(recvs.begin(), recvs.end(), before);
  for (std::size_t i = 0; i < std::max(sends.size(), recvs.size()); ++i) {
    if (i == recvs.size() || (i < sends.size() && before(sends[i], recvs[i]))) {
      return fault_at(sends[i].node, "nobody receives this message");
    }
    if (i == sends.size() || before(recvs[i], sends[i])) {
      return fault_at(recvs[i].node, "nobody sends this message");
    }
    if (i > 0 && !before(sends[i - 1], sends[i])) {
      return fault_at(sends[i].node, "two messages have this number");
    }
    ISTHMUS_TRY(pair(sends[i].node, recvs[i].node));
  }
  return {};
}

Status Run::pair(std::uint32_t send, std::uint32_t recv) {
  const Step& out = step_of(send);
  const Step& in = step_of(recv);
  const Schedule& schedule = *part_of(send).schedule;
  const std::uint32_t length = out.end - out.begin;
  // An all_to_all's block has the receiver's number where it leaves, the sender's where it arrives.
  const bool same_place = schedule.op == OpKind::kAllToAll
                              ? (out.begin - in.begin) % schedule.partition.pieces() == 0
                              : out.begin == in.begin;
  if (length != in.end - in.begin || (length > 0 && !same_place)) {
    return fault_at(recv,
                    fmt::format("the sender's message has another length: {}", describe(out)));
  }
  partner_[send] = recv;
  partner_[recv] = send;
  return {};
}

Status Run::link_awaits(Part& part) {
  const Schedule& schedule = *part.schedule;
  const std::span<const int> members =
      topology_.members(topology_.node_of(static_cast<int>(part.rank)));
  for (const std::uint32_t index : part.order->events()) {
    const Step& step = schedule.steps[index];
    if (step.kind != StepKind::kAwait) {
      continue;
    }
    for (std::uint32_t local = step.peer; local < step.peer + step.count; ++local) {
      const auto peer = static_cast<std::uint32_t>(members[local]);
      if (peer == part.rank) {
        continue;
      }
      const Part& owner = parts_[part.operation * ranks_ + peer];
      const std::uint32_t publisher = owner.order->publisher(step.line, step.value);
      if (publisher == kNone) {
        return fault(schedule, index,
                     fmt::format("local rank {} (rank {}) never publishes this", local, peer));
      }
      ++pending_[part.first_node + index];
      std::uint32_t& head = awaits_head_[owner.first_node + publisher];
      awaits_.push_back({part.first_node + index, head});
      head = static_cast<std::uint32_t>(awaits_.size() - 1);
    }
  }
  return {};
}

void Run::begin_part(Part& part) {
  for (std::uint32_t step = 0; step < part.schedule->steps.size(); ++step) {
    released_one(part.first_node + step);
  }
  if (part.schedule->steps.empty() && part.operation + 1 < operations_.size()) {
    begin_part(parts_[(part.operation + 1) * ranks_ + part.rank]);
  }
}

void Run::released_one(std::uint32_t node) {
  if (--pending_[node] == 0) {
    ready_.push_back(node);
  }
}

Status Run::start(std::uint32_t node) {
  started_[node] = 1;
  const Step& step = step_of(node);
  const std::uint32_t length = step.end - step.begin;
  if (step.kind == StepKind::kSend) {
    ISTHMUS_TRY(read(node, step.src, length));
    payload_[node] = messages_[0].size();
    for (std::uint32_t i = 0; i < length; ++i) {
      const Ref from = ref(part_of(node), {step.src.space, step.src.local, step.src.at + i});
      messages_[0].push_back(values_[0][from.apart]);
      messages_[1].push_back(values_[1][from.cell]);
    }
    if (started_[partner_[node]] != 0) {
      return meet(node, partner_[node]);
    }
    if (delivery_ == Delivery::kEager) {
      end_step(node);
    }
    return {};
  }
  if (step.kind == StepKind::kRecv) {
    return started_[partner_[node]] != 0 ? meet(partner_[node], node) : Status();
  }
  return complete(node);
}

// Both sides of a message have started.
Status Run::meet(std::uint32_t send, std::uint32_t recv) {
  ISTHMUS_TRY(take_message(send, recv));
  end_step(recv);
  if (over_[send] == 0) {
    end_step(send);
  }
  return {};
}

Status Run::complete(std::uint32_t node) {
  const Step& step = step_of(node);
  if (step.kind == StepKind::kCopy) {
    ISTHMUS_TRY(copy(node));
  } else if (step.kind == StepKind::kReduce) {
    ISTHMUS_TRY(reduce(node));
  } else {
    note_event(node);
  }
  end_step(node);
  return {};
}

void Run::end_step(std::uint32_t node) {
  over_[node] = 1;
  Part& part = part_of(node);
  const Schedule& schedule = *part.schedule;
  const std::uint32_t step = node - part.first_node;
  const auto release = [&](std::uint32_t next) {
    for (std::size_t word = 0; word < known_words_; ++word) {
      known(part.first_node + next)[word] |= known(node)[word];
    }
    released_one(part.first_node + next);
  };
  if (schedule.in_order) {
    if (step + 1 < schedule.steps.size()) {
      release(step + 1);
    }
  } else {
    for (std::uint32_t at = schedule.release_begin[step]; at < schedule.release_begin[step + 1];
         ++at) {
      release(schedule.releases[at]);
    }
  }
  for (std::uint32_t at = awaits_head_[node]; at != kNone; at = awaits_[at].next) {
    released_one(awaits_[at].node);
  }
  if (--part.open == 0 && part.operation + 1 < operations_.size()) {
    begin_part(parts_[(part.operation + 1) * ranks_ + part.rank]);
  }
}

// A Publish or Await: what it knows of the other local ranks' events, and which ranks' starts.
void Run::note_event(std::uint32_t node) {
  const Part& part = part_of(node);
  const std::uint32_t index = node - part.first_node;
  if (part.order->event_of(index) == kNone) {
    return;  // a joint
  }
  const std::span<const int> members =
      topology_.members(topology_.node_of(static_cast<int>(part.rank)));
  const std::size_t width = members.size();
  std::vector<std::uint32_t>& rows = clocks_[part.rank];
  const std::size_t events = rows.size() / width;  // of this rank so far
  rows.resize(rows.size() + width, 0);
  std::uint32_t* row = rows.data() + events * width;
  if (events > 0) {
    std::copy(row - width, row, row);
  }
  row[topology_.local_of(static_cast<int>(part.rank))] = static_cast<std::uint32_t>(events + 1);
  const Step& step = part.schedule->steps[index];
  if (step.kind != StepKind::kAwait) {
    return;
  }
  for (std::uint32_t local = step.peer; local < step.peer + step.count; ++local) {
    const auto peer = static_cast<std::uint32_t>(members[local]);
    if (peer == part.rank) {
      continue;
    }
    const Part& owner = parts_[part.operation * ranks_ + peer];
    const std::uint32_t publisher = owner.order->publisher(step.line, step.value);
    const std::uint32_t event = owner.first_event + owner.order->event_of(publisher);
    const std::uint32_t* theirs = clocks_[peer].data() + event * width;
    for (std::size_t i = 0; i < width; ++i) {
      row[i] = std::max(row[i], theirs[i]);
    }
    // Only line 0 compares signatures: what a rank of unknown signature tells is no knowledge.
    const bool checked = (known(node)[peer / 64] >> (peer % 64) & 1U) != 0;
    if (step.line == kAnnounceLine || checked) {
      for (std::size_t word = 0; word < known_words_; ++word) {
        known(node)[word] |= known(owner.first_node + publisher)[word];
      }
    }
  }
}

Error Run::stuck() {
  std::uint32_t first = kNone;
  for (std::uint32_t node = 0; node < over_.size(); ++node) {
    if (over_[node] != 0) {
      continue;
    }
    if (started_[node] != 0 || step_of(node).kind == StepKind::kAwait) {
      first = node;
      break;
    }
    first = std::min(first, node);
  }
  return fault_at(first, fmt::format("a deadlock: this step never ends, in {} delivery",
                                     delivery_ == Delivery::kEager ? "eager" : "rendezvous"));
}

}  // namespace isthmus::proof
