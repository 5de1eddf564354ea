#include "perf/limits/kernels.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

#include <sys/uio.h>
#include <unistd.h>

#include "perf/limits/sum.h"

namespace isthmus::limits {
namespace {

struct Slice {
  std::size_t begin;
  std::size_t count;
};

// Rank `rank`'s part of `count` floats, in whole lines but for the last.
Slice slice(std::size_t count, int size, int rank) {
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t each = ((count + ranks - 1) / ranks + kLineFloats - 1) & ~(kLineFloats - 1);
  const std::size_t begin = std::min(count, each * static_cast<std::size_t>(rank));
  return {begin, std::min(each, count - begin)};
}

float* as_floats(std::byte* at) {
  return reinterpret_cast<float*>(at);
}

std::size_t at_rank(int rank) {
  return static_cast<std::size_t>(rank);
}

// Asks for lines in order to write them, so that the next copy into them need not wait.
void want_lines(const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLineFloats) {
    want(from + i);
  }
}

void copy(const Tuning& tuning, float* to, const float* from, std::size_t count) {
  if (tuning.want_lines != 0) {
    vector_copy(to, from, count, tuning.want_lines);
  } else {
    std::memcpy(to, from, count * sizeof(float));
  }
  if (tuning.demote) {
    for (std::size_t i = 0; i < count; i += kLineFloats) {
      demote(to + i);
    }
  }
}

// One line a rank: a number and up to 15 floats. The number is stored last, and since both are in
// one line they cross together. Two lines a rank in turn: a rank writes turn t + 2 only after it
// has seen all others' turn t + 1, thus after they have read turn t.
class LineKernel final : public Kernel {
 public:
  LineKernel(Team* team, const Tuning& tuning)
      : Kernel(team),
        spacing_(tuning.spacing),
        ahead_bytes_(tuning.ahead_bytes),
        lines_(Team::share(2 * tuning.spacing * Team::kMostRanks)) {}

  std::size_t most_bytes() const override { return kLine - sizeof(float); }

  void all_reduce(float* buffer, std::size_t count) override {
    ++turn_;
    Line* mine = line(team_.rank());
    std::memcpy(mine->payload, buffer, count * sizeof(float));
    mine->number.store(turn_, std::memory_order_release);
    // A rank's own values come from a copy: its line is on the way to another core by now.
    Line own;
    std::memcpy(own.payload, buffer, count * sizeof(float));
    Vector total{};
    for (int r = 0; r < team_.size(); ++r) {
      Line* one = r == team_.rank() ? &own : line(r);
      if (one != &own) {
        team_.until([&] { return one->number.load(std::memory_order_acquire) == turn_; });
      }
      total += load(reinterpret_cast<const float*>(one));
    }
    float sums[kLineFloats];
    store(sums, total);
    std::memcpy(buffer, sums + 1, count * sizeof(float));
    if (ahead_bytes_ != 0) {
      want_lines(reinterpret_cast<const float*>(line(team_.rank(), turn_ + 1)), 1);
    }
  }

 private:
  struct alignas(kLine) Line {
    std::atomic<std::uint32_t> number{0};
    float payload[kLineFloats - 1]{};
  };

  Line* line(int rank) const { return line(rank, turn_); }

  Line* line(int rank, std::uint32_t turn) const {
    const std::size_t row = (turn & 1) * Team::kMostRanks + at_rank(rank);
    return reinterpret_cast<Line*>(lines_ + row * spacing_);
  }

  std::size_t spacing_;
  std::size_t ahead_bytes_;
  std::byte* lines_;
  std::uint32_t turn_ = 0;
};

// Lines that each carry a number and 15 floats: no flag, one crossing whatever the size.
class LinesKernel final : public Kernel {
 public:
  LinesKernel(Team* team, const Tuning& tuning)
      : Kernel(team),
        ahead_bytes_(tuning.ahead_bytes),
        lines_(Team::share(2 * Team::kMostRanks * kMostLines * kLine)) {}

  std::size_t most_bytes() const override { return kMostBytes; }

  void all_reduce(float* buffer, std::size_t count) override {
    ++turn_;
    const std::size_t lines = (count + kFloats - 1) / kFloats;
    Line* mine = at(team_.rank(), turn_);
    for (std::size_t i = 0; i < lines; ++i) {
      const std::size_t some = std::min(kFloats, count - i * kFloats);
      std::memcpy(mine[i].payload, buffer + i * kFloats, some * sizeof(float));
      mine[i].number.store(turn_, std::memory_order_release);
    }
    for (std::size_t i = 0; i < lines; ++i) {
      const std::size_t some = std::min(kFloats, count - i * kFloats);
      Line own;
      std::memcpy(own.payload, buffer + i * kFloats, some * sizeof(float));
      Vector total{};
      for (int r = 0; r < team_.size(); ++r) {
        Line* one = r == team_.rank() ? &own : at(r, turn_) + i;
        if (one != &own) {
          team_.until([&] { return one->number.load(std::memory_order_acquire) == turn_; });
        }
        total += load(reinterpret_cast<const float*>(one));
      }
      float sums[kLineFloats];
      store(sums, total);
      std::memcpy(buffer + i * kFloats, sums + 1, some * sizeof(float));
    }
    if (count * sizeof(float) <= ahead_bytes_) {
      want_lines(reinterpret_cast<const float*>(at(team_.rank(), turn_ + 1)), lines * kLineFloats);
    }
  }

 private:
  static constexpr std::size_t kFloats = kLineFloats - 1;
  static constexpr std::size_t kMostBytes = 32 << 10;
  static constexpr std::size_t kMostLines = kMostBytes / (kFloats * sizeof(float)) + 1;

  struct alignas(kLine) Line {
    std::atomic<std::uint32_t> number{0};
    float payload[kFloats]{};
  };

  Line* at(int rank, std::uint32_t turn) const {
    const std::size_t row = (turn & 1) * Team::kMostRanks + at_rank(rank);
    return reinterpret_cast<Line*>(lines_) + row * kMostLines;
  }

  std::size_t ahead_bytes_;
  std::byte* lines_;
  std::uint32_t turn_ = 0;
};

// A slot a rank and a flag: copy in, one flag, every rank sums all slots; two slots in turn.
class SlotsKernel final : public Kernel {
 public:
  SlotsKernel(Team* team, const Tuning& tuning)
      : Kernel(team),
        tuning_(tuning),
        slots_(Team::share(2 * Team::kMostRanks * kMostBytes)),
        flags_(reinterpret_cast<Flag*>(Team::share(sizeof(Flag) * Team::kMostRanks))) {}

  std::size_t most_bytes() const override { return kMostBytes; }

  void all_reduce(float* buffer, std::size_t count) override {
    ++turn_;
    copy(tuning_, slot(team_.rank(), turn_), buffer, count);
    team_.post(&flags_[team_.rank()], turn_);
    std::array<const float*, Team::kMostRanks> from{};
    for (int r = 0; r < team_.size(); ++r) {
      from[at_rank(r)] = r == team_.rank() ? buffer : slot(r, turn_);
      if (r != team_.rank()) {
        team_.wait(&flags_[r], turn_);
      }
    }
    sum(buffer, from.data(), team_.size(), count, nullptr, tuning_.prefetch_lines);
    if (count * sizeof(float) <= tuning_.ahead_bytes) {
      want_lines(slot(team_.rank(), turn_ + 1), count);
    }
  }

 private:
  static constexpr std::size_t kMostBytes = 1 << 20;

  float* slot(int rank, std::uint32_t turn) const {
    const std::size_t row = (turn & 1) * Team::kMostRanks + at_rank(rank);
    return as_floats(slots_ + row * kMostBytes);
  }

  Tuning tuning_;
  std::byte* slots_;
  Flag* flags_;
  std::uint32_t turn_ = 0;
};

// Every rank reads every other rank's whole copy through a ring of slots. Chunk i is copied in
// before chunk i - lag is summed. A rank that has published chunk i has read all chunks before
// i - lag, so with 2 * lag + 2 slots the published counters also say which slots are free.
class PipelineKernel final : public Kernel {
 public:
  PipelineKernel(Team* team, const Tuning& tuning)
      : Kernel(team),
        tuning_(tuning),
        lag_(static_cast<std::size_t>(tuning.slots - 2) / 2),
        slots_(Team::share(ring_bytes() * static_cast<std::size_t>(team->size()))),
        flags_(reinterpret_cast<Flag*>(Team::share(sizeof(Flag) * Team::kMostRanks))) {}

  std::size_t most_bytes() const override { return tuning_.most_bytes; }

  void all_reduce(float* buffer, std::size_t count) override {
    const std::size_t chunk = tuning_.slot_bytes / sizeof(float);
    const std::size_t chunks = (count + chunk - 1) / chunk;
    for (std::size_t i = 0; i < chunks + lag_; ++i) {
      if (i < chunks) {
        write(buffer + i * chunk, std::min(chunk, count - i * chunk), i);
      }
      if (i >= lag_) {
        const std::size_t j = i - lag_;
        read(buffer + j * chunk, std::min(chunk, count - j * chunk), j);
      }
    }
    done_ += static_cast<std::uint32_t>(chunks);
  }

 private:
  std::size_t ring_bytes() const {
    return tuning_.slot_bytes * static_cast<std::size_t>(tuning_.slots);
  }

  float* slot(int rank, std::size_t chunk) const {
    const std::size_t turn = (done_ + chunk) % static_cast<std::size_t>(tuning_.slots);
    return as_floats(slots_ + at_rank(rank) * ring_bytes() + turn * tuning_.slot_bytes);
  }

  void write(const float* from, std::size_t count, std::size_t chunk) {
    copy(tuning_, slot(team_.rank(), chunk), from, count);
    team_.post(&flags_[team_.rank()], done_ + static_cast<std::uint32_t>(chunk) + 1);
    if (count * sizeof(float) <= tuning_.ahead_bytes) {
      want_lines(slot(team_.rank(), chunk + 1), count);
    }
  }

  void read(float* to, std::size_t count, std::size_t chunk) {
    std::array<const float*, Team::kMostRanks> from{};
    for (int r = 0; r < team_.size(); ++r) {
      if (r == team_.rank()) {
        from[at_rank(r)] = to;
        continue;
      }
      team_.wait(&flags_[r], done_ + static_cast<std::uint32_t>(chunk) + 1);
      from[at_rank(r)] = slot(r, chunk);
    }
    std::size_t summed = 0;
    if (team_.size() == 2 && tuning_.pages > 1) {
      summed = add_pages(to, from[at_rank(1 - team_.rank())],
                         static_cast<std::size_t>(tuning_.pages), count);
    }
    for (int r = 0; r < team_.size(); ++r) {
      from[at_rank(r)] += summed;
    }
    sum(to + summed, from.data(), team_.size(), count - summed, nullptr, tuning_.prefetch_lines);
  }

  Tuning tuning_;
  std::size_t lag_;
  std::byte* slots_;
  Flag* flags_;
  std::uint32_t done_ = 0;
};

// Reduce-scatter and all-gather through shared slots, chunk by chunk. `cico` meets twice a chunk;
// `sliced` works on three chunks at once (copy in i, reduce i - 1, copy out i - 2) and meets once.
class SlicedKernel final : public Kernel {
 public:
  SlicedKernel(Team* team, const Tuning& tuning, bool overlap)
      : Kernel(team),
        tuning_(tuning),
        overlap_(overlap),
        slots_(Team::share(2 * tuning.slot_bytes * static_cast<std::size_t>(team->size()))),
        results_(Team::share(2 * tuning.slot_bytes)) {}

  std::size_t most_bytes() const override { return tuning_.most_bytes; }

  void all_reduce(float* buffer, std::size_t count) override {
    const std::size_t chunk = tuning_.slot_bytes / sizeof(float);
    const std::size_t chunks = (count + chunk - 1) / chunk;
    const auto size_of = [&](std::size_t i) { return std::min(chunk, count - i * chunk); };
    if (!overlap_) {
      for (std::size_t i = 0; i < chunks; ++i, ++turn_) {
        copy_in(buffer + i * chunk, size_of(i), turn_);
        team_.meet();
        reduce(buffer + i * chunk, size_of(i), turn_);
        team_.meet();
        copy_out(buffer + i * chunk, size_of(i), turn_);
      }
      return;
    }
    for (std::size_t i = 0; i < chunks + 2; ++i) {
      if (i < chunks) {
        copy_in(buffer + i * chunk, size_of(i), turn_ + i);
      }
      if (i >= 1 && i - 1 < chunks) {
        reduce(buffer + (i - 1) * chunk, size_of(i - 1), turn_ + i - 1);
      }
      if (i >= 2) {
        copy_out(buffer + (i - 2) * chunk, size_of(i - 2), turn_ + i - 2);
      }
      if (i < chunks + 1) {
        team_.meet();
      }
    }
    turn_ += chunks;
  }

 private:
  float* slot(int rank, std::size_t turn) const {
    const std::size_t row = (turn & 1) * static_cast<std::size_t>(team_.size()) + at_rank(rank);
    return as_floats(slots_ + row * tuning_.slot_bytes);
  }

  float* result(std::size_t turn) const {
    return as_floats(results_ + (turn & 1) * tuning_.slot_bytes);
  }

  void around(float* to, const float* from, std::size_t count) const {
    const Slice mine = slice(count, team_.size(), team_.rank());
    const std::size_t after = mine.begin + mine.count;
    copy(tuning_, to, from, mine.begin);
    copy(tuning_, to + after, from + after, count - after);
  }

  void copy_in(const float* from, std::size_t count, std::size_t turn) const {
    around(slot(team_.rank(), turn), from, count);
  }

  void reduce(float* at, std::size_t count, std::size_t turn) const {
    const Slice mine = slice(count, team_.size(), team_.rank());
    std::array<const float*, Team::kMostRanks> from{};
    for (int r = 0; r < team_.size(); ++r) {
      from[at_rank(r)] = (r == team_.rank() ? at : slot(r, turn)) + mine.begin;
    }
    sum(at + mine.begin, from.data(), team_.size(), mine.count, result(turn) + mine.begin,
        tuning_.prefetch_lines);
  }

  void copy_out(float* to, std::size_t count, std::size_t turn) const {
    const Slice mine = slice(count, team_.size(), team_.rank());
    const std::size_t after = mine.begin + mine.count;
    const float* from = result(turn);
    std::memcpy(to, from, mine.begin * sizeof(float));
    std::memcpy(to + after, from + after, (count - after) * sizeof(float));
  }

  Tuning tuning_;
  bool overlap_;
  std::byte* slots_;
  std::byte* results_;
  std::size_t turn_ = 0;
};

// Slices of private buffers read with process_vm_readv: one copy, a system call each.
class CmaKernel final : public Kernel {
 public:
  CmaKernel(Team* team, const Tuning& tuning)
      : Kernel(team),
        tuning_(tuning),
        ranks_(reinterpret_cast<Rank*>(Team::share(sizeof(Rank) * Team::kMostRanks))),
        scratch_(kScratch) {}

  std::size_t most_bytes() const override { return tuning_.most_bytes; }

  void all_reduce(float* buffer, std::size_t count) override {
    ranks_[team_.rank()] = {getpid(), buffer};
    team_.meet();
    const Slice mine = slice(count, team_.size(), team_.rank());
    for (std::size_t at = mine.begin; at < mine.begin + mine.count; at += kScratch) {
      const std::size_t some = std::min(kScratch, mine.begin + mine.count - at);
      for (int k = 1; k < team_.size(); ++k) {
        read((team_.rank() + k) % team_.size(), scratch_.data(), at, some);
        const float* from[] = {buffer + at, scratch_.data()};
        sum(buffer + at, from, 2, some, nullptr, 0);
      }
    }
    team_.meet();
    for (int k = 1; k < team_.size(); ++k) {
      const int r = (team_.rank() + k) % team_.size();
      const Slice theirs = slice(count, team_.size(), r);
      read(r, buffer + theirs.begin, theirs.begin, theirs.count);
    }
    team_.meet();
  }

 private:
  static constexpr std::size_t kScratch = 64 << 10;

  struct Rank {
    pid_t process;
    float* buffer;
  };

  void read(int rank, float* to, std::size_t begin, std::size_t count) const {
    const iovec here{to, count * sizeof(float)};
    const iovec there{ranks_[rank].buffer + begin, count * sizeof(float)};
    const ssize_t got =
        count == 0 ? 0 : process_vm_readv(ranks_[rank].process, &here, 1, &there, 1, 0);
    if (got != static_cast<ssize_t>(count * sizeof(float))) {
      std::perror("process_vm_readv");
      _exit(1);
    }
  }

  Tuning tuning_;
  Rank* ranks_;
  std::vector<float> scratch_;
};

// All buffers mapped by all ranks: loads and stores only, each element read once and written once
// by the one rank that sums it.
class DirectKernel final : public Kernel {
 public:
  DirectKernel(Team* team, const Tuning& tuning) : Kernel(team), tuning_(tuning) {
    for (int r = 0; r < team->size(); ++r) {
      buffers_.push_back(as_floats(Team::share(tuning.most_bytes)));
    }
  }

  std::size_t most_bytes() const override { return tuning_.most_bytes; }

  float* buffer() override { return buffers_[at_rank(team_.rank())]; }

  void all_reduce(float*, std::size_t count) override {
    team_.meet();
    const Slice mine = slice(count, team_.size(), team_.rank());
    const bool past_caches =
        count * sizeof(float) * static_cast<std::size_t>(team_.size()) > tuning_.stream_bytes;
    for (std::size_t i = 0; i < mine.count; i += kBlock) {
      block(mine.begin + i, std::min(kBlock, mine.count - i), past_caches);
    }
#if defined(__x86_64__)
    _mm_sfence();
#endif
    team_.meet();
  }

 private:
  static constexpr std::size_t kBlock = 2048;

  // Sums a block into the first-level cache, then writes it to every buffer.
  void block(std::size_t begin, std::size_t count, bool past_caches) {
    std::array<const float*, Team::kMostRanks> from{};
    for (int k = 0; k < team_.size(); ++k) {
      from[at_rank(k)] = buffers_[at_rank((team_.rank() + k) % team_.size())] + begin;
    }
    sum(block_, from.data(), team_.size(), count, nullptr, tuning_.prefetch_lines);
    for (int k = 0; k < team_.size(); ++k) {
      float* to = buffers_[at_rank((team_.rank() + k) % team_.size())] + begin;
      if (past_caches && count % kLineFloats == 0) {
        for (std::size_t i = 0; i < count; i += kLineFloats) {
          stream(to + i, load(block_ + i));
        }
      } else {
        vector_copy(to, block_, count, 0);
      }
    }
  }

  Tuning tuning_;
  std::vector<float*> buffers_;
  alignas(kLine) float block_[kBlock];
};

}  // namespace

std::unique_ptr<Kernel> make_kernel(std::string_view name, Team* team, const Tuning& tuning) {
  if (name == "line") {
    return std::make_unique<LineKernel>(team, tuning);
  }
  if (name == "lines") {
    return std::make_unique<LinesKernel>(team, tuning);
  }
  if (name == "slots") {
    return std::make_unique<SlotsKernel>(team, tuning);
  }
  if (name == "pipeline") {
    return std::make_unique<PipelineKernel>(team, tuning);
  }
  if (name == "cico" || name == "sliced") {
    return std::make_unique<SlicedKernel>(team, tuning, name == "sliced");
  }
  if (name == "cma") {
    return std::make_unique<CmaKernel>(team, tuning);
  }
  if (name == "direct") {
    return std::make_unique<DirectKernel>(team, tuning);
  }
  return nullptr;
}

}  // namespace isthmus::limits
