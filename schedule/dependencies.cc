#include "schedule/dependencies.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace isthmus {

namespace {

constexpr std::uint32_t kNone = 0xffffffffU;

// Who last wrote a run of positions, and who has read them since.
struct Cell {
  std::uint32_t writer = kNone;
  std::uint32_t readers = kNone;  // list in Finder
};

// The positions of one space, in runs that no step's span begins or ends within: as many cells as
// steps make different, however many positions there are.
class Cells {
 public:
  explicit Cells(std::uint32_t positions) : first_(positions + 1U, 0) {}

  // Before join(): a span that will be asked for.
  void cut(std::uint32_t begin, std::uint32_t length) {
    first_[begin] = 1;
    first_[begin + length] = 1;
  }

  void join() {
    std::uint32_t cells = 0;
    for (std::uint32_t& first : first_) {
      const std::uint32_t begins = first;
      first = cells;
      cells += begins;
    }
    cells_.resize(cells);
  }

  std::span<Cell> at(std::uint32_t begin, std::uint32_t length) {
    return std::span(cells_).subspan(first_[begin], first_[begin + length] - first_[begin]);
  }

 private:
  std::vector<std::uint32_t> first_;  // of each position: 1 where a span begins or ends; then cell
  std::vector<Cell> cells_;
};

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
    for (const Step& step : schedule_.steps) {
      for_each_span(step, [this](const Place& place, std::uint32_t length, bool) {
        std::uint32_t begin = 0;
        if (Cells* cells = space_of(place, &begin)) {
          cells->cut(begin, length);
        }
      });
    }
    for (Cells* cells : {&caller_, &scratch_, &line_, &slot_, &stage_}) {
      cells->join();
    }
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
    const bool mapped = has_owner(step.dst.space) || has_owner(step.src.space);
    if (mapped) {
      depend(last_await_);
    }
    if (step.dst.space == Space::kOutput && gate_ != 0 && step_ >= gate_) {
      depend_on_all(gated_on_);
    }
    for_each_span(step, [this](const Place& place, std::uint32_t span, bool writes) {
      writes ? write(place, span) : read(place, span);
    });
    if (mapped) {
      mapped_unpublished_.push_back(step_);
    }
  }

  // Calls use(place, length, writes) with every span of a Copy, Reduce, Send or Recv: what it
  // reads, then what it writes.
  template <typename Use>
  void for_each_span(const Step& step, const Use& use) const {
    const std::uint32_t length = step.end - step.begin;
    if (step.kind == StepKind::kPublish || step.kind == StepKind::kAwait) {
      return;
    }
    read_operands(step, length, use);
    if (step.kind == StepKind::kReduce && step.own_input) {
      use({Space::kInput, 0, step.begin}, length, false);
    }
    use(step.dst, length, true);
  }

  template <typename Use>
  void read_operands(const Step& step, std::uint32_t length, const Use& use) const {
    if (step.kind != StepKind::kReduce || step.count == 0) {
      use(step.src, length, false);
    } else if (is_exposed(step.src.space)) {
      return;  // others' buffers; its own operand is the input
    } else if (is_mapped(step.src.space)) {
      const bool own_too = !step.own_input && schedule_.local >= step.src.local &&
                           schedule_.local - step.src.local < step.count;
      if (own_too) {
        use({step.src.space, schedule_.local, step.src.at}, length, false);
      }
    } else {
      for (std::uint32_t i = 0; i < step.count; ++i) {
        if (!step.own_input || i != step.src.local) {
          use({step.src.space, 0, step.src.at + i * length}, length, false);
        }
      }
    }
  }

  // The cells that a place is in, and where there; null when this rank's steps alone cannot
  // conflict there.
  Cells* space_of(const Place& place, std::uint32_t* begin) {
    *begin = place.at;
    switch (place.space) {
      case Space::kInput:
      case Space::kOutput:
        *begin = caller_mark(schedule_, place);
        return &caller_;
      case Space::kScratch:
        return &scratch_;
      case Space::kLine:
        return place.local == schedule_.local ? &line_ : nullptr;
      case Space::kSlot:
        return place.local == schedule_.local ? &slot_ : nullptr;
      case Space::kStage:
        return place.local == schedule_.local ? &stage_ : nullptr;
      case Space::kNone:
      case Space::kPeerInput:
      case Space::kPeerOutput:
        break;
    }
    return nullptr;
  }

  std::span<Cell> cells(const Place& place, std::uint32_t length) {
    std::uint32_t begin = 0;
    Cells* const space = space_of(place, &begin);
    return space == nullptr ? std::span<Cell>() : space->at(begin, length);
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
  Cells caller_;
  Cells scratch_;
  Cells line_;
  Cells slot_;
  Cells stage_;
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
    return (schedule.own_block() << schedule.partition.pieces_log2) + place.at;
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
