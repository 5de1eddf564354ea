#include <algorithm>
#include <bit>

#include "collectives/algorithms/message.h"

namespace isthmus {

void disseminate(Builder& b) {
  for (std::uint32_t distance = 1; distance < b.ranks(); distance *= 2) {
    b.signal((b.rank() + distance) % b.ranks());
    b.wait_signal((b.rank() + b.ranks() - distance) % b.ranks());
  }
}

Result<Schedule> dissemination_barrier(const Request& request) {
  Builder b = start_schedule(request, OpKind::kBarrier, "dissemination_barrier", {}, false);
  disseminate(b);
  return b.build();
}

namespace {

// Recursive doubling over the whole data. The partial sum moves between scratch units: of two
// partners' partial sums the one of the lower ranks is always the left operand, so that all ranks
// evaluate the same tree. Every receive has a unit of its own: it can be posted at once, and no
// cycle of sends can wait for it.
class Doubling {
 public:
  explicit Doubling(Builder& b) : b_(b), core_(std::bit_floor(b.ranks())) {}

  void run() {
    b_.copy(Builder::scratch(0), Builder::input(0), 0, 1);
    const std::uint32_t folded = b_.ranks() - core_;  // odd ranks below 2 x folded sit out
    const bool pairs = b_.rank() < 2 * folded;
    if (pairs && b_.rank() % 2 == 1) {
      b_.send(b_.rank() - 1, sum_, 0, 1);
      // The answer holds everyone's data, so everyone has started.
      b_.recv(b_.rank() - 1, Builder::scratch(next_), 0, 1);
      b_.copy(Builder::output(0), Builder::scratch(next_), 0, 1);
      return;
    }
    if (pairs) {
      take_higher(b_.rank() + 1, core_ == 1);
    }
    const std::uint32_t index = pairs ? b_.rank() / 2 : b_.rank() - folded;
    for (std::uint32_t distance = 1; distance < core_; distance *= 2) {
      const std::uint32_t partner = index ^ distance;
      const std::uint32_t peer = partner < folded ? 2 * partner : partner + folded;
      const bool last = distance * 2 == core_;
      b_.send(peer, sum_, 0, 1);
      if (partner > index) {
        take_higher(peer, last);
      } else {
        take_lower(peer, last);
      }
    }
    b_.copy(Builder::output(0), sum_, 0, 1);
    if (pairs) {
      b_.send(b_.rank() + 1, sum_, 0, 1);
    }
  }

 private:
  // sum = sum op peer's
  void take_higher(std::uint32_t peer, bool finish) {
    const Place theirs = Builder::scratch(next_++);
    b_.recv(peer, theirs, 0, 1);
    b_.reduce(sum_, theirs, 0, 1, finish);
  }

  // sum = peer's op sum
  void take_lower(std::uint32_t peer, bool finish) {
    const Place theirs = Builder::scratch(next_++);
    b_.recv(peer, theirs, 0, 1);
    b_.reduce(theirs, sum_, 0, 1, finish);
    sum_ = theirs;
  }

  Builder& b_;
  const std::uint32_t core_;  // largest power of two within the group
  Place sum_ = Builder::scratch(0);
  std::uint32_t next_ = 1;
};

}  // namespace

Result<Schedule> doubling_all_reduce(const Request& request) {
  Builder b = start_schedule(request, OpKind::kAllReduce, "doubling_all_reduce", {}, false);
  Doubling(b).run();
  return b.build();
}

Result<Schedule> doubling_all_gather(const Request& request) {
  const auto ranks = static_cast<std::uint32_t>(request.topology.ranks());
  Builder b =
      start_schedule(request, OpKind::kAllGather, "doubling_all_gather", {true, ranks, 0}, false);
  disseminate(b);
  b.gate_output();
  b.copy(Builder::output(b.rank()), Builder::input(0), b.rank(), b.rank() + 1);

  // Blocks [first, first + count), in a circle: two messages where they wrap.
  const auto move = [&](std::uint32_t peer, std::uint32_t first, std::uint32_t count, bool out) {
    const std::uint32_t straight = std::min(count, ranks - first);
    const auto part = [&](std::uint32_t begin, std::uint32_t end) {
      if (begin < end && out) {
        b.send(peer, Builder::output(begin), begin, end);
      } else if (begin < end) {
        b.recv(peer, Builder::output(begin), begin, end);
      }
    };
    part(first, first + straight);
    part(0, count - straight);
  };

  // After the round of distance d a rank holds its own block and those of the 2d - 1 before it.
  for (std::uint32_t distance = 1; distance < ranks; distance *= 2) {
    const std::uint32_t count = std::min(distance, ranks - distance);
    move((b.rank() + distance) % ranks, (b.rank() + ranks - count + 1) % ranks, count, true);
    move((b.rank() + ranks - distance) % ranks,
         (b.rank() + 2 * ranks - distance - count + 1) % ranks, count, false);
  }
  return b.build();
}

}  // namespace isthmus
