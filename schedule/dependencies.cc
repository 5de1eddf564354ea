#include "schedule/dependencies.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace isthmus {

namespace {

constexpr std::uint32_t kNone = 0xffffffffU;

class Finder {
 public:
  Finder(Schedule* schedule, std::size_t gate)
      : schedule_(*schedule),
        gate_(gate),
        last_named_(schedule->steps.size(), kNone),
        caller_(caller_cells(*schedule)),
        scratch_(schedule->scratch_units),
        line_(1),
        slot_(schedule->slot_units),
        stage_(schedule->stage_units) {}

  void run() {
    for (step_ = 0; step_ < schedule_.steps.size(); ++step_) {
      visit(schedule_.steps[step_]);
      if (step_ + 1 == gate_) {
        gated_on_ = acquires_;
        if (is_joint(schedule_.steps[step_])) {
          gated_on_.assign(1, step_);
        }
      }
    }
    compress();
  }

 private:
  struct Cell {
    std::uint32_t writer = kNone;
    std::uint32_t readers = kNone;  // list in readers_
  };

  struct Reader {
    std::uint32_t step = 0;
    std::uint32_t next = kNone;
  };

  static bool is_joint(const Step& step) {
    return step.kind == StepKind::kAwait && step.count == 0;
  }

  void depend(std::uint32_t earlier) {
    if (earlier != kNone && earlier != step_ && last_named_[earlier] != step_) {
      last_named_[earlier] = step_;
      edges_.emplace_back(earlier, step_);
    }
  }

  void depend_on_all(std::span<const std::uint32_t> earlier) {
    for (const std::uint32_t step : earlier) {
      depend(step);
    }
  }

  void visit(const Step& step) {
    const bool sends_signal = step.kind == StepKind::kSend && step.src.space == Space::kNone;
    const bool takes_signal = step.kind == StepKind::kRecv && step.dst.space == Space::kNone;
    if (is_joint(step)) {
      depend_on_all(acquires_);
      return;
    }
    if (step.kind == StepKind::kPublish || step.kind == StepKind::kAwait) {
      order_with_line(step);
      return;
    }
    if (sends_signal) {
      depend_on_all(signals_);
      depend(last_line_step_);
      return;
    }
    touch(step);
    if (step.kind == StepKind::kRecv) {
      acquires_.push_back(step_);
    }
    if (takes_signal) {
      signals_.push_back(step_);
      signals_unpublished_.push_back(step_);
    }
  }

  // Publish and Await form one chain in the order given.
  void order_with_line(const Step& step) {
    depend(last_line_step_);
    if (step.kind == StepKind::kPublish) {
      depend_on_all(mapped_unpublished_);
      depend_on_all(signals_unpublished_);
      mapped_unpublished_.clear();
      signals_unpublished_.clear();
    } else {
      last_await_ = step_;
      acquires_.push_back(step_);
    }
    last_line_step_ = step_;
  }

  // Spans that a Copy, Reduce, Send or Recv reads and writes.
  void touch(const Step& step) {
    const std::uint32_t length = step.end - step.begin;
    const bool mapped = has_owner(step.dst.space) || has_owner(step.src.space);
    if (mapped) {
      depend(last_await_);
    }
    if (step.dst.space == Space::kOutput && gate_ != 0 && step_ >= gate_) {
      depend_on_all(gated_on_);
    }
    read_operands(step, length);
    if (step.kind == StepKind::kReduce && step.own_input) {
      read({Space::kInput, 0, step.begin}, length);
    }
    write(step.dst, length);
    if (mapped) {
      mapped_unpublished_.push_back(step_);
    }
  }

  void read_operands(const Step& step, std::uint32_t length) {
    if (step.kind != StepKind::kReduce || step.count == 0) {
      read(step.src, length);
    } else if (is_exposed(step.src.space)) {
      return;  // others' buffers; its own operand is the input
    } else if (is_mapped(step.src.space)) {
      const bool own_too = !step.own_input && schedule_.local >= step.src.local &&
                           schedule_.local - step.src.local < step.count;
      if (own_too) {
        read({step.src.space, schedule_.local, step.src.at}, length);
      }
    } else {
      for (std::uint32_t i = 0; i < step.count; ++i) {
        if (!step.own_input || i != step.src.local) {
          read({step.src.space, 0, step.src.at + i * length}, length);
        }
      }
    }
  }

  // The cells of a place; empty when this rank's steps alone cannot conflict there.
  std::span<Cell> cells(const Place& place, std::uint32_t length) {
    switch (place.space) {
      case Space::kInput:
      case Space::kOutput:
        return std::span(caller_).subspan(caller_mark(schedule_, place), length);
      case Space::kScratch:
        return std::span(scratch_).subspan(place.at, length);
      case Space::kLine:
      case Space::kSlot:
      case Space::kStage:
        break;
      case Space::kNone:
      case Space::kPeerInput:
      case Space::kPeerOutput:
        return {};
    }
    if (place.local != schedule_.local) {
      return {};
    }
    std::vector<Cell>& owned = place.space == Space::kLine   ? line_
                               : place.space == Space::kSlot ? slot_
                                                             : stage_;
    return std::span(owned).subspan(place.at, length);
  }

  void read(const Place& place, std::uint32_t length) {
    for (Cell& cell : cells(place, length)) {
      depend(cell.writer);
      readers_.push_back({step_, cell.readers});
      cell.readers = static_cast<std::uint32_t>(readers_.size() - 1);
    }
  }

  void write(const Place& place, std::uint32_t length) {
    for (Cell& cell : cells(place, length)) {
      depend(cell.writer);
      for (std::uint32_t at = cell.readers; at != kNone; at = readers_[at].next) {
        depend(readers_[at].step);
      }
      cell = {step_, kNone};
    }
  }

  void compress() {
    const std::size_t steps = schedule_.steps.size();
    schedule_.wait_count.assign(steps, 0);
    schedule_.release_begin.assign(steps + 1, 0);
    for (const auto& [from, to] : edges_) {
      ++schedule_.release_begin[from + 1];
      ++schedule_.wait_count[to];
    }
    for (std::size_t i = 0; i < steps; ++i) {
      schedule_.release_begin[i + 1] += schedule_.release_begin[i];
    }
    schedule_.releases.resize(edges_.size());
    std::vector<std::uint32_t> next(schedule_.release_begin.begin(),
                                    schedule_.release_begin.end() - 1);
    for (const auto& [from, to] : edges_) {
      schedule_.releases[next[from]++] = to;
    }
  }

  Schedule& schedule_;
  const std::size_t gate_;
  std::uint32_t step_ = 0;
  std::vector<std::uint32_t> last_named_;  // per step: the last step that got a dependency on it
  std::vector<Cell> caller_;
  std::vector<Cell> scratch_;
  std::vector<Cell> line_;
  std::vector<Cell> slot_;
  std::vector<Cell> stage_;
  std::vector<Reader> readers_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;
  std::uint32_t last_line_step_ = kNone;
  std::uint32_t last_await_ = kNone;
  std::vector<std::uint32_t> mapped_unpublished_;   // steps on mapped spaces since the last Publish
  std::vector<std::uint32_t> signals_unpublished_;  // signals taken since the last Publish
  std::vector<std::uint32_t> signals_;              // all signals taken
  std::vector<std::uint32_t> acquires_;             // all steps that received or awaited
  std::vector<std::uint32_t> gated_on_;
};

}  // namespace

std::uint32_t caller_mark(const Schedule& schedule, const Place& place) {
  const OpTraits& traits = op_traits(schedule.op);
  const bool output = place.space == Space::kOutput;
  if (output ? traits.output_block : traits.input_block) {
    return (schedule.rank << schedule.partition.pieces_log2) + place.at;
  }
  return output && !traits.in_place ? schedule.partition.marks() + place.at : place.at;
}

std::uint32_t caller_cells(const Schedule& schedule) {
  return schedule.partition.marks() * (op_traits(schedule.op).in_place ? 1 : 2);
}

void infer_dependencies(Schedule* schedule, std::size_t gate) {
  Finder(schedule, gate).run();
}

}  // namespace isthmus
