#include <bit>

#include "collectives/algorithms/message.h"

namespace isthmus {

namespace {

// Recursive halving and doubling (Rabenseifner, "Optimization of Collective Reduction Operations",
// 2004). The data has one mark per rank of the core, the largest power of two within the group;
// ranks beyond it fold theirs into a neighbour first, as in doubling_all_reduce. In round k of the
// way down partners at distance core / 2^(k+1) exchange halves of the marks both still hold sums
// of, and each keeps one; the way up runs the rounds back. Of two partners' sums the one of the
// lower index is always the left operand, so a mark is combined by one tree.
class Halving {
 public:
  Halving(Builder& b, std::uint32_t core)
      : b_(b), core_(core), folded_(b.ranks() - core), pairs_(b.rank() < 2 * folded_) {}

  void run() {
    if (pairs_ && b_.rank() % 2 == 1) {
      b_.send(b_.rank() - 1, Builder::input(0), 0, core_);
      // The answer holds everyone's data, so everyone has started.
      b_.recv(b_.rank() - 1, Builder::output(0), 0, core_);
      return;
    }
    b_.copy(Builder::scratch(0), Builder::input(0), 0, core_);
    if (pairs_) {
      b_.recv(b_.rank() + 1, Builder::scratch(next_), 0, core_);
      b_.reduce(Builder::scratch(0), Builder::scratch(next_), 0, core_, core_ == 1);
      next_ += core_;
    }
    descend();
    ascend();
    if (pairs_) {
      b_.send(b_.rank() + 1, Builder::output(0), 0, core_);
    }
  }

 private:
  std::uint32_t index() const { return pairs_ ? b_.rank() / 2 : b_.rank() - folded_; }

  std::uint32_t rank_of(std::uint32_t index) const {
    return index < folded_ ? 2 * index : index + folded_;
  }

  // First mark of the run of `size` marks that a rank holds.
  std::uint32_t first(std::uint32_t index, std::uint32_t size) const { return index & ~(size - 1); }

  // Marks of the running sum lie at their own numbers in scratch, or where the last one put them.
  void descend() {
    for (std::uint32_t half = core_ / 2; half > 0; half /= 2) {
      const std::uint32_t partner = index() ^ half;
      const std::uint32_t kept = first(index(), half);
      const std::uint32_t given = first(partner, half);
      const Place theirs = Builder::scratch(next_);
      next_ += half;
      b_.send(rank_of(partner), Builder::scratch(sum_ + given), given, given + half);
      b_.recv(rank_of(partner), theirs, kept, kept + half);
      const Place ours = Builder::scratch(sum_ + kept);
      const bool last = half == 1;
      if (partner > index()) {
        b_.reduce(ours, theirs, kept, kept + half, last);
      } else {
        b_.reduce(theirs, ours, kept, kept + half, last);
        sum_ = theirs.at - kept;  // wraps around: only sum_ + kept is used
      }
    }
  }

  void ascend() {
    const std::uint32_t own = index();
    b_.copy(Builder::output(own), Builder::scratch(sum_ + own), own, own + 1);
    for (std::uint32_t size = 1; size < core_; size *= 2) {
      const std::uint32_t partner = own ^ size;
      const std::uint32_t held = first(own, size);
      const std::uint32_t missing = first(partner, size);
      b_.send(rank_of(partner), Builder::output(held), held, held + size);
      b_.recv(rank_of(partner), Builder::output(missing), missing, missing + size);
    }
  }

  Builder& b_;
  const std::uint32_t core_;
  const std::uint32_t folded_;  // odd ranks below twice this sit out
  const bool pairs_;
  std::uint32_t sum_ = 0;  // scratch unit of mark 0 of the running sum
  std::uint32_t next_ = core_;
};

}  // namespace

Result<Schedule> halving_all_reduce(const Request& request) {
  const std::uint32_t core = std::bit_floor(static_cast<std::uint32_t>(request.topology.ranks()));
  Builder b =
      start_schedule(request, OpKind::kAllReduce, "halving_all_reduce", {false, core, 0}, false);
  Halving(b, core).run();
  return b.build();
}

}  // namespace isthmus
