#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "collectives/algorithms/two_level.h"

namespace isthmus {

// An all_reduce over nodes, chunk by chunk: local rank l reduces slice l of the chunk within its
// node, `Cross` combines it with the counterparts' of the other nodes, and l shows the result.
// Nodes have as many slices as the smallest has ranks; staging holds `buffers` chunks: this rank's
// input, and in the place of its own slice the result. What crosses between nodes stays in scratch,
// so that no progress line waits for the network but the one that shows a result.
//
// Cross has, for one chunk's slice:
//   Cross(const Request&)
//   parts()   marks of a slice
//   units()   of scratch that it uses
//   result()  the first of `parts` units in a row where the combined slice lies in the end
//   run(b, operands, first, base)  the steps: reduces the node's `operands` of marks
//             [first, first + parts), exchanges; its units begin at `base`
template <typename Cross>
class Lanes {
 public:
  Lanes(const Request& request, std::string_view name)
      : cross_(request),
        chunks_(request.tuning.pieces),
        buffers_(std::max(request.tuning.slots, request.tuning.lead + 3)),
        lead_(request.tuning.lead),
        lanes_(static_cast<std::uint32_t>(request.topology.locals_min())),
        b_(start_schedule(request, OpKind::kAllReduce, name,
                          {false, chunks_ * lanes_ * cross_.parts(), 0}, true)) {}

  // Chunk c is staged in round c, reduced in the next, shown `lead` rounds later and read in the
  // one after: a buffer is busy for lead + 3 rounds.
  Result<Schedule> build() {
    for (std::uint32_t round = 0; round < chunks_ + lead_ + 2; ++round) {
      if (round < chunks_) {
        stage(round);
      }
      if (round >= 1 && round - 1 < chunks_) {
        reduce(round - 1);
      }
      if (round >= lead_ + 1 && round - lead_ - 1 < chunks_) {
        show(round - lead_ - 1);
      }
      if (round >= lead_ + 2) {
        collect(round - lead_ - 2);
      }
    }
    return b_.build();
  }

 private:
  static constexpr std::uint8_t kStaged = 1;
  static constexpr std::uint8_t kShown = 2;
  static constexpr std::uint8_t kResultsRead = 3;

  bool has_lane() const { return b_.local() < lanes_; }

  std::uint32_t mark(std::uint32_t chunk, std::uint32_t lane) const {
    return (chunk * lanes_ + lane) * cross_.parts();
  }

  std::uint32_t unit(std::uint32_t chunk, std::uint32_t lane) const {
    return (chunk % buffers_ * lanes_ + lane) * cross_.parts();
  }

  std::uint32_t base(std::uint32_t chunk) const { return chunk % buffers_ * cross_.units(); }

  void copy_lanes(std::uint32_t chunk, std::uint32_t first, std::uint32_t last) {
    if (first < last) {
      b_.copy(b_.stage(unit(chunk, first)), Builder::input(mark(chunk, first)), mark(chunk, first),
              mark(chunk, last));
    }
  }

  void stage(std::uint32_t chunk) {
    if (chunk >= buffers_) {
      b_.await_all(kResultsRead, chunk - buffers_ + 1);
    }
    copy_lanes(chunk, 0, has_lane() ? b_.local() : lanes_);
    copy_lanes(chunk, b_.local() + 1, lanes_);
    b_.publish(chunk == 0 ? kAnnounceLine : kStaged, chunk + 1);
  }

  void reduce(std::uint32_t chunk) {
    b_.await_all(chunk == 0 ? kAnnounceLine : kStaged, chunk + 1);
    if (has_lane()) {
      cross_.run(b_, b_.stage(unit(chunk, b_.local())), mark(chunk, b_.local()), base(chunk));
    }
  }

  void show(std::uint32_t chunk) {
    if (!has_lane()) {
      return;
    }
    const std::uint32_t first = mark(chunk, b_.local());
    const std::uint32_t last = first + cross_.parts();
    const Place result = Builder::scratch(base(chunk) + cross_.result());
    b_.copy(b_.stage(unit(chunk, b_.local())), result, first, last);
    b_.publish(kShown, chunk + 1);
    b_.copy(Builder::output(first), result, first, last);
  }

  void collect(std::uint32_t chunk) {
    b_.await(kShown, chunk + 1, 0, lanes_);
    for (std::uint32_t step = 0; step < lanes_; ++step) {
      const std::uint32_t lane = (b_.local() + step) % lanes_;
      if (lane != b_.local()) {
        const std::uint32_t first = mark(chunk, lane);
        b_.copy(Builder::output(first), Builder::of_local(b_.stage(unit(chunk, lane)), lane), first,
                first + cross_.parts());
      }
    }
    if (chunk + buffers_ < chunks_) {
      b_.publish(kResultsRead, chunk + 1);
    }
  }

  const Cross cross_;
  const std::uint32_t chunks_;
  const std::uint32_t buffers_;
  const std::uint32_t lead_;
  const std::uint32_t lanes_;
  Builder b_;
};

}  // namespace isthmus
