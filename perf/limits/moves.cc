#include "perf/limits/moves.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/uio.h>
#include <unistd.h>

#include "perf/limits/sum.h"

namespace isthmus::limits {
namespace {

void copy(const Tuning& tuning, std::byte* to, const std::byte* from, std::size_t bytes) {
  vector_copy(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from),
              bytes / sizeof(float), std::max(tuning.want_lines, 1));
}

// Everyone says where its buffer is, reads what it needs, and waits until all have read.
class PullMover final : public Mover {
 public:
  explicit PullMover(Team* team)
      : Mover(team),
        ranks_(reinterpret_cast<Rank*>(Team::share(sizeof(Rank) * Team::kMostRanks))) {}

  bool moves(MoveOp) const override { return true; }

  void move(MoveOp op, std::byte* a, std::byte* b, std::size_t block) override {
    const int own = team_.rank();
    const auto at = [&](int rank) { return static_cast<std::size_t>(rank) * block; };
    ranks_[own] = {getpid(), a};
    team_.meet();
    if (op == MoveOp::kBroadcast) {
      if (own != 0) {
        read(0, a, 0, block);
      }
      team_.meet();
      return;
    }
    if (op == MoveOp::kAllToAll) {
      std::memcpy(b + at(own), a + at(own), block);
    }
    for (int k = 1; k < team_.size(); ++k) {
      const int other = (own + k) % team_.size();
      const bool gathers = op == MoveOp::kAllGather;
      read(other, (gathers ? a : b) + at(other), at(gathers ? other : own), block);
    }
    team_.meet();
  }

 private:
  struct Rank {
    pid_t process;
    std::byte* buffer;
  };

  void read(int rank, std::byte* to, std::size_t begin, std::size_t bytes) const {
    const iovec here{to, bytes};
    const iovec there{ranks_[rank].buffer + begin, bytes};
    if (process_vm_readv(ranks_[rank].process, &here, 1, &there, 1, 0) !=
        static_cast<ssize_t>(bytes)) {
      std::perror("process_vm_readv");
      std::exit(1);
    }
  }

  Rank* ranks_;
};

// Everyone copies what the others need into its ring of slots, a few ahead of the one that it
// copies out of the others' rings. With 2 lag + 2 slots no flag for free ones is needed.
class StageMover final : public Mover {
 public:
  StageMover(Team* team, const Tuning& tuning)
      : Mover(team),
        tuning_(tuning),
        lag_(static_cast<std::size_t>(tuning.slots - 2) / 2),
        ring_bytes_(tuning.slot_bytes * static_cast<std::size_t>(tuning.slots)),
        slots_(Team::share(ring_bytes_ * static_cast<std::size_t>(team->size()))),
        flags_(reinterpret_cast<Flag*>(Team::share(sizeof(Flag) * Team::kMostRanks))) {}

  // What a rank shows is the same for all that read it.
  bool moves(MoveOp op) const override {
    return op == MoveOp::kAllGather || (op == MoveOp::kAllToAll && team_.size() == 2);
  }

  void move(MoveOp op, std::byte* a, std::byte* b, std::size_t block) override {
    const int own = team_.rank();
    const auto at = [&](int rank) { return static_cast<std::size_t>(rank) * block; };
    const bool gathers = op == MoveOp::kAllGather;
    const std::byte* const shown = a + at(gathers ? own : 1 - own);
    std::byte* const into = gathers ? a : b;
    const std::size_t chunk = tuning_.slot_bytes;
    const std::size_t chunks = (block + chunk - 1) / chunk;
    for (std::size_t i = 0; i < chunks + lag_; ++i) {
      if (i < chunks) {
        copy(tuning_, slot(own, i), shown + i * chunk, std::min(chunk, block - i * chunk));
        team_.post(&flags_[own], done_ + static_cast<std::uint32_t>(i) + 1);
      }
      for (int k = 1; i >= lag_ && k < team_.size(); ++k) {
        const int other = (own + k) % team_.size();
        const std::size_t j = i - lag_;
        team_.wait(&flags_[other], done_ + static_cast<std::uint32_t>(j) + 1);
        copy(tuning_, into + at(other) + j * chunk, slot(other, j),
             std::min(chunk, block - j * chunk));
      }
    }
    if (!gathers) {
      std::memcpy(b + at(own), a + at(own), block);
    }
    done_ += static_cast<std::uint32_t>(chunks);
  }

 private:
  std::byte* slot(int rank, std::size_t chunk) const {
    const std::size_t turn = (done_ + chunk) % static_cast<std::size_t>(tuning_.slots);
    return slots_ + static_cast<std::size_t>(rank) * ring_bytes_ + turn * tuning_.slot_bytes;
  }

  Tuning tuning_;
  std::size_t lag_;
  std::size_t ring_bytes_;
  std::byte* slots_;
  Flag* flags_;
  std::uint32_t done_ = 0;
};

}  // namespace

bool move_op(std::string_view name, MoveOp* op) {
  if (name == "all_gather") {
    *op = MoveOp::kAllGather;
  } else if (name == "all_to_all") {
    *op = MoveOp::kAllToAll;
  } else if (name == "broadcast") {
    *op = MoveOp::kBroadcast;
  } else {
    return false;
  }
  return true;
}

std::unique_ptr<Mover> make_mover(std::string_view name, Team* team, const Tuning& tuning) {
  if (name == "pull") {
    return std::make_unique<PullMover>(team);
  }
  if (name == "stage") {
    return std::make_unique<StageMover>(team, tuning);
  }
  return nullptr;
}

}  // namespace isthmus::limits
