#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace isthmus {

// Runs the schedules of all ranks over integers, one mark a word, in a random interleaving: the
// oracle that the proof is tested against. Shares no code with schedule/verify. Sends hand over
// their bytes at any moment from their post on, a posted receive may scribble over its span at any
// moment before it completes, and long steps are cut: a race shows up as a different result in some
// seed.
class ScheduleExecutor {
 public:
  // What a word of data is: its sum tells the contributions, its order how they were combined.
  struct Word {
    std::uint64_t sum = 0;
    std::uint64_t order = 0;

    bool operator==(const Word&) const = default;
  };

  struct Options {
    bool in_place = false;
    bool rendezvous = false;
    std::uint64_t seed = 1;
  };

  ScheduleExecutor(std::span<const Schedule> schedules, const Topology& topology,
                   const Options& options)
      : schedules_(schedules), topology_(topology), options_(options), random_(options.seed) {}

  // False when no step can go on, or a step leaves its memory: then why() says so.
  bool run() {
    prepare();
    std::vector<std::size_t> order;
    for (;;) {
      order.clear();
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (ranks_[rank].open > 0) {
          order.push_back(rank);
        }
      }
      if (order.empty()) {
        return why_.empty();
      }
      std::shuffle(order.begin(), order.end(), random_);
      bool moved = false;
      for (const std::size_t rank : order) {
        moved = advance(rank) || moved;
        if (!why_.empty()) {
          return false;
        }
        if (moved && random_() % 2 == 0) {
          break;
        }
      }
      if (!moved && !std::exchange(delayed_, false)) {
        why_ = "no step can go on";
        return false;
      }
    }
  }

  const std::string& why() const { return why_; }

  // The output of each rank, in marks.
  std::vector<std::vector<Word>> outputs() const {
    std::vector<std::vector<Word>> result;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::size_t first = output_base(schedules_[rank]);
      const std::vector<Word>& memory = ranks_[rank].memory.at(kOutputMemory);
      const std::size_t length = output_marks(schedules_[rank]);
      result.emplace_back(memory.begin() + static_cast<std::ptrdiff_t>(first),
                          memory.begin() + static_cast<std::ptrdiff_t>(first + length));
    }
    return result;
  }

  // Rank's operand at a mark of its input.
  static Word word_of(std::uint32_t rank, std::uint32_t mark) {
    const std::uint64_t word = mix64((static_cast<std::uint64_t>(rank) << 32) + mark + 1);
    return {word, word};
  }

  // Whether the outputs are what the operation promises: all contributions once, finished once, and
  // for all_reduce the same order of combination on all ranks.
  static bool right(std::span<const Schedule> schedules,
                    const std::vector<std::vector<Word>>& outputs) {
    const Schedule& first = schedules[0];
    const auto ranks = static_cast<std::uint32_t>(schedules.size());
    const std::uint32_t pieces = first.partition.pieces();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint32_t mark = 0; mark < outputs[rank].size(); ++mark) {
        const Word& got = outputs[rank][mark];
        switch (first.op) {
          case OpKind::kAllReduce:
            if (got.sum != sum_of(ranks, mark) || got != outputs[0][mark]) {
              return false;
            }
            break;
          case OpKind::kReduceScatter:
          case OpKind::kReduceShards:
            if (got.sum != sum_of(ranks, schedules[rank].own_block() * pieces + mark)) {
              return false;
            }
            break;
          case OpKind::kAllGather:
            if (got != word_of(mark / pieces, mark % pieces)) {
              return false;
            }
            break;
          case OpKind::kBroadcast:
            if (got != word_of(first.root, mark)) {
              return false;
            }
            break;
          case OpKind::kReduce:
            if (got.sum != sum_of(ranks, mark)) {
              return false;
            }
            break;
          case OpKind::kGather:
            if (got != word_of(mark / pieces, mark % pieces)) {
              return false;
            }
            break;
          case OpKind::kScatter:
            if (got != word_of(first.root, rank * pieces + mark)) {
              return false;
            }
            break;
          case OpKind::kAllToAll:
            if (got != word_of(mark / pieces, rank * pieces + mark % pieces)) {
              return false;
            }
            break;
          default:
            break;
        }
      }
    }
    return true;
  }

 private:
  static constexpr int kInputMemory = 1;
  static constexpr int kOutputMemory = 2;
  static constexpr std::uint64_t kFinish = 0x5bd1e995ULL;  // what finishing adds to a sum

  enum class State : std::uint8_t { kWaiting, kPosted, kDone };

  struct Rank {
    std::map<int, std::vector<Word>> memory;  // by space
    std::map<int, std::uint32_t> lines;
    std::vector<std::uint32_t> waits;
    std::vector<State> states;
    std::vector<std::uint32_t> ready;  // steps whose dependencies are over and that are not done
    std::size_t open = 0;
  };

  struct Message {
    std::optional<std::vector<Word>> data;
    std::uint32_t send_step = 0;
    bool sent = false;
    bool send_done = false;
    bool posted = false;
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };

  static std::uint64_t sum_of(std::uint32_t ranks, std::uint32_t mark) {
    std::uint64_t sum = ranks > 1 ? kFinish : 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      sum += word_of(rank, mark).sum;
    }
    return sum;
  }

  static Word combine(const Word& a, const Word& b) {
    return {a.sum + b.sum, mix64(a.order * 3 + mix64(b.order + 1))};
  }

  static bool input_is_block(const Schedule& s) {
    return s.op == OpKind::kAllGather || s.op == OpKind::kGather;
  }

  static bool output_is_block(const Schedule& s) {
    return s.op == OpKind::kReduceScatter || s.op == OpKind::kScatter ||
           s.op == OpKind::kReduceShards;
  }

  static std::size_t input_marks(const Schedule& s) {
    if (s.op == OpKind::kScatter && s.rank != s.root) {
      return 0;
    }
    return input_is_block(s) ? s.partition.pieces() : s.partition.marks();
  }

  static std::size_t output_marks(const Schedule& s) {
    if ((s.op == OpKind::kReduce || s.op == OpKind::kGather) && s.rank != s.root) {
      return 0;
    }
    return output_is_block(s) ? s.partition.pieces() : s.partition.marks();
  }

  static std::size_t own_block(const Schedule& s) {
    return static_cast<std::size_t>(s.own_block()) * s.partition.pieces();
  }

  // An all_to_all has no in-place form.
  bool in_place(const Schedule& s) const { return options_.in_place && s.op != OpKind::kAllToAll; }

  // In place one memory holds both; the smaller of input and output is a block of it.
  std::size_t output_base(const Schedule& s) const {
    return in_place(s) && output_is_block(s) ? own_block(s) : 0;
  }

  std::size_t input_base(const Schedule& s) const {
    return in_place(s) && input_is_block(s) ? own_block(s) : 0;
  }

  void prepare() {
    ranks_.assign(schedules_.size(), {});
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const Schedule& s = schedules_[r];
      Rank& rank = ranks_[r];
      rank.memory[kInputMemory].resize(s.partition.marks());
      rank.memory[kOutputMemory].resize(s.partition.marks());
      rank.memory[static_cast<int>(Space::kScratch)].resize(s.scratch_units);
      rank.memory[static_cast<int>(Space::kLine)].resize(1);
      rank.memory[static_cast<int>(Space::kSlot)].resize(s.slot_units);
      rank.memory[static_cast<int>(Space::kStage)].resize(s.stage_units);
      for (auto& [space, words] : rank.memory) {
        for (Word& word : words) {
          word = {random_(), random_()};
        }
      }
      const bool reads_output = in_place(s) || (s.op == OpKind::kBroadcast && s.rank == s.root);
      std::vector<Word>& data = rank.memory[reads_output ? kOutputMemory : kInputMemory];
      for (std::uint32_t mark = 0; mark < input_marks(s); ++mark) {
        data[input_base(s) + mark] = word_of(s.rank, mark);
      }
      rank.states.assign(s.steps.size(), State::kWaiting);
      rank.open = s.steps.size();
      if (s.in_order) {
        if (!s.steps.empty()) {
          rank.ready.push_back(0);
        }
      } else {
        rank.waits = s.wait_count;
        for (std::uint32_t i = 0; i < s.steps.size(); ++i) {
          if (rank.waits[i] == 0) {
            rank.ready.push_back(i);
          }
        }
      }
    }
  }

  // The words of a place, or an empty span with why_ set.
  std::span<Word> words(std::size_t reader, const Place& place, std::size_t length) {
    std::size_t owner = reader;
    int memory = static_cast<int>(place.space);
    std::size_t at = place.at;
    const Schedule& s = schedules_[reader];
    if (has_owner(place.space)) {
      const std::span<const int> members =
          topology_.members(topology_.node_of(static_cast<int>(reader)));
      if (place.local >= members.size()) {
        why_ = "a local rank that does not exist";
        return {};
      }
      owner = static_cast<std::size_t>(members[place.local]);
    }
    if (is_exposed(place.space)) {
      if (ranks_[owner].open == 0) {
        why_ = "a read of a buffer whose rank has returned";
        return {};
      }
      return words(owner, owner_place(place), length);
    }
    if (is_mapped(place.space)) {
      // One of its own spaces.
    } else if (place.space == Space::kInput) {
      memory = in_place(s) ? kOutputMemory : kInputMemory;
      at += input_base(s);
    } else if (place.space == Space::kOutput) {
      memory = kOutputMemory;
      at += output_base(s);
    }
    std::vector<Word>& all = ranks_[owner].memory[memory];
    if (at + length > all.size()) {
      why_ = "a span outside its space";
      return {};
    }
    return std::span(all).subspan(at, length);
  }

  // Tries one ready step of a rank, at random; tries all before giving up.
  bool advance(std::size_t r) {
    Rank& rank = ranks_[r];
    const std::size_t count = rank.ready.size();
    const std::size_t start = count == 0 ? 0 : random_() % count;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = (start + i) % count;
      const std::uint32_t step = rank.ready[at];
      const bool was_posted = rank.states[step] == State::kPosted;
      if (execute(r, step)) {
        rank.ready.erase(rank.ready.begin() + static_cast<std::ptrdiff_t>(at));
        finish(r, step);
        return true;
      }
      if (!why_.empty() || (!was_posted && rank.states[step] == State::kPosted)) {
        return why_.empty();
      }
    }
    return false;
  }

  void finish(std::size_t r, std::uint32_t step) {
    Rank& rank = ranks_[r];
    const Schedule& s = schedules_[r];
    rank.states[step] = State::kDone;
    --rank.open;
    if (s.in_order) {
      if (step + 1 < s.steps.size()) {
        rank.ready.push_back(step + 1);
      }
      return;
    }
    for (std::uint32_t at = s.release_begin[step]; at < s.release_begin[step + 1]; ++at) {
      if (--rank.waits[s.releases[at]] == 0) {
        rank.ready.push_back(s.releases[at]);
      }
    }
  }

  bool execute(std::size_t r, std::uint32_t index) {
    const Step& step = schedules_[r].steps[index];
    switch (step.kind) {
      case StepKind::kSend:
        return send(r, index, step);
      case StepKind::kRecv:
        return recv(r, index, step);
      case StepKind::kCopy:
        copy(r, step);
        return why_.empty();
      case StepKind::kReduce:
        reduce(r, step);
        return why_.empty();
      case StepKind::kPublish:
        ranks_[r].lines[step.line] = step.value;
        return true;
      case StepKind::kAwait:
        return awaited(r, step);
    }
    return false;
  }

  std::vector<Word> take(std::size_t r, const Place& place, std::size_t length) {
    if (place.space == Space::kNone) {
      return {};
    }
    const std::span<Word> src = words(r, place, length);
    return {src.begin(), src.end()};
  }

  Message& message(std::size_t from, std::size_t to, std::uint32_t number) {
    return messages_[{from, to, number}];
  }

  bool send(std::size_t r, std::uint32_t index, const Step& step) {
    Message& m = message(r, step.peer, step.value);
    const std::size_t length = step.end - step.begin;
    State& state = ranks_[r].states[index];
    if (state == State::kWaiting) {
      state = State::kPosted;
      m.sent = true;
      m.send_step = index;
      m.begin = step.begin;
      m.end = step.end;
      if (random_() % 2 == 0) {
        m.data = take(r, step.src, length);
      }
    }
    if (options_.rendezvous && !m.posted) {
      return false;
    }
    if (!m.data.has_value()) {
      if (random_() % 2 == 0) {
        delayed_ = true;  // the wire is slow: it reads the span later
        return false;
      }
      m.data = take(r, step.src, length);
    }
    return true;
  }

  bool recv(std::size_t r, std::uint32_t index, const Step& step) {
    Message& m = message(step.peer, r, step.value);
    const std::size_t length = step.end - step.begin;
    State& state = ranks_[r].states[index];
    m.posted = true;
    const bool first = state == State::kWaiting;
    state = State::kPosted;
    if (step.dst.space != Space::kNone && (first || random_() % 4 == 0)) {
      for (Word& word : words(r, step.dst, length)) {
        word = {random_(), random_()};
      }
    }
    if (!why_.empty() || !m.sent || !m.data.has_value()) {
      // A slow wire may read the sender's span as late as now.
      if (m.sent && why_.empty()) {
        delayed_ = true;
        if (random_() % 2 == 0) {
          m.data = take(step.peer, schedules_[step.peer].steps[m.send_step].src, m.end - m.begin);
        }
      }
      return false;
    }
    if (!same_length(schedules_[r].partition, step, m)) {
      why_ = "a message of another length";
      return false;
    }
    if (step.dst.space != Space::kNone) {
      const std::span<Word> dst = words(r, step.dst, length);
      if (!why_.empty()) {
        return false;
      }
      std::copy(m.data->begin(), m.data->end(), dst.begin());
    }
    return true;
  }

  static bool same_length(const Partition& partition, const Step& step, const Message& m) {
    if (step.end - step.begin != m.end - m.begin) {
      return false;
    }
    const std::uint32_t mask = partition.pieces() - 1;
    return step.end == step.begin ||
           (partition.ranked ? (step.begin & mask) == (m.begin & mask) : step.begin == m.begin);
  }

  void copy(std::size_t r, const Step& step) {
    const std::size_t length = step.end - step.begin;
    const std::vector<Word> data = take(r, step.src, length);
    const std::span<Word> dst = words(r, step.dst, length);
    if (why_.empty()) {
      std::copy(data.begin(), data.end(), dst.begin());
    }
  }

  void reduce(std::size_t r, const Step& step) {
    const std::size_t length = step.end - step.begin;
    const auto span = static_cast<std::uint32_t>(length);
    std::vector<std::vector<Word>> operands;
    const bool mapped = has_owner(step.src.space);
    const std::uint32_t own = mapped ? schedules_[r].local : step.src.local;
    if (step.count == 0) {
      operands.push_back(take(r, step.src_first ? step.src : step.dst, length));
      operands.push_back(take(r, step.src_first ? step.dst : step.src, length));
    }
    for (std::uint32_t i = 0; i < step.count; ++i) {
      Place place = {step.src.space, 0, step.src.at + i * span};
      if (mapped) {
        place = {step.src.space, step.src.local + i, step.src.at};
      }
      const bool is_own = step.own_input && (mapped ? place.local == own : i == own);
      operands.push_back(take(r, is_own ? Place{Space::kInput, 0, step.begin} : place, length));
    }
    if (step.dst.local != kEveryone) {
      store_result(r, step, operands, step.dst);
      return;
    }
    for (std::uint32_t local = 0; local < schedules_[r].locals; ++local) {
      store_result(r, step, operands, {step.dst.space, local, step.dst.at});
    }
  }

  void store_result(std::size_t r, const Step& step, const std::vector<std::vector<Word>>& operands,
                    const Place& place) {
    const std::size_t length = step.end - step.begin;
    const std::span<Word> dst = words(r, place, length);
    if (!why_.empty()) {
      return;
    }
    for (std::size_t i = 0; i < length; ++i) {
      Word result = operands[0][i];
      for (std::size_t k = 1; k < operands.size(); ++k) {
        result = combine(result, operands[k][i]);
      }
      if (step.finish && schedules_.size() > 1) {
        result.sum += kFinish;
        result.order = mix64(result.order + kFinish);
      }
      dst[i] = result;
    }
  }

  bool awaited(std::size_t r, const Step& step) {
    const std::span<const int> members = topology_.members(topology_.node_of(static_cast<int>(r)));
    for (std::uint32_t i = 0; i < step.count; ++i) {
      const std::uint32_t local = step.peer + i;
      if (local >= members.size()) {
        why_ = "awaits a local rank that does not exist";
        return false;
      }
      const std::size_t owner = static_cast<std::size_t>(members[local]);
      if (owner != r && ranks_[owner].lines[step.line] < step.value) {
        return false;
      }
    }
    return true;
  }

  std::span<const Schedule> schedules_;
  const Topology& topology_;
  Options options_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<std::size_t, std::size_t, std::uint32_t>, Message> messages_;
  bool delayed_ = false;
  std::string why_;
};

}  // namespace isthmus
