#include <algorithm>

#include "collectives/algorithms/two_level.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStaged = 1;
constexpr std::uint8_t kShown = 2;
constexpr std::uint8_t kResultsRead = 3;
constexpr std::uint32_t kNoOwn = 0xffffffffU;

}  // namespace

Result<Schedule> leader_all_reduce(const Request& request) {
  Builder b = start_schedule(request, OpKind::kAllReduce, "leader_all_reduce", {}, true);
  const Nodes nodes(request);
  const Place operand = b.slot(0);
  const Place result = b.slot(1);
  if (b.local() != 0) {
    b.copy(operand, Builder::input(0), 0, 1);
  }
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  if (b.local() != 0) {
    b.await(kStaged, 1, 0, 1);
    b.copy(Builder::output(0), Builder::of_local(result, 0), 0, 1);
    return b.build();
  }
  b.reduce_locals(Builder::scratch(nodes.own()), operand, 0, 1, true, false);
  for (std::uint32_t step = 1; step < nodes.count(); ++step) {
    const std::uint32_t to = nodes.after(step);
    const std::uint32_t from = nodes.after(nodes.count() - step);
    b.send(nodes.rank_at(to, 0), Builder::scratch(nodes.own()), 0, 1);
    b.recv(nodes.rank_at(from, 0), Builder::scratch(from), 0, 1);
  }
  b.reduce_units(result, Builder::scratch(0), nodes.count(), kNoOwn, 0, 1, true);
  b.publish(kStaged, 1);
  b.copy(Builder::output(0), result, 0, 1);
  return b.build();
}

namespace {

// lanes_all_reduce and exchange_all_reduce. A chunk has `lanes` slices of `parts` marks: as many
// parts as nodes, or one. Staging holds `buffers` chunks: this rank's input, and in the place of
// its own slice the result. What crosses between nodes stays in scratch, so that no progress line
// waits for the network but the one that shows a result.
class Lanes {
 public:
  Lanes(const Request& request, std::string_view name, bool split)
      : nodes_(request),
        chunks_(request.tuning.pieces),
        buffers_(std::max(request.tuning.slots, request.tuning.lead + 3)),
        lead_(request.tuning.lead),
        lanes_(nodes_.locals_min()),
        parts_(split ? nodes_.count() : 1),
        b_(start_schedule(request, OpKind::kAllReduce, name, {false, chunks_ * lanes_ * parts_, 0},
                          true)) {}

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
  bool has_lane() const { return b_.local() < lanes_; }

  std::uint32_t mark(std::uint32_t chunk, std::uint32_t lane) const {
    return (chunk * lanes_ + lane) * parts_;
  }

  std::uint32_t unit(std::uint32_t chunk, std::uint32_t lane) const {
    return (chunk % buffers_ * lanes_ + lane) * parts_;
  }

  // Scratch of a chunk: the nodes' operands of this node's part, the result's parts, and (when
  // split) this node's sums for the other nodes' parts.
  Place scratch(std::uint32_t chunk, std::uint32_t unit) const {
    const std::uint32_t units = nodes_.count() + (parts_ > 1 ? 2 * parts_ : 1);
    return Builder::scratch(chunk % buffers_ * units + unit);
  }

  Place operand(std::uint32_t chunk, std::uint32_t node) const { return scratch(chunk, node); }

  Place result(std::uint32_t chunk, std::uint32_t part) const {
    return scratch(chunk, nodes_.count() + part);
  }

  Place sum(std::uint32_t chunk, std::uint32_t part) const {
    return scratch(chunk, nodes_.count() + parts_ + part);
  }

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
    if (!has_lane()) {
      return;
    }
    const std::uint32_t first = mark(chunk, b_.local());
    for (std::uint32_t part = 0; part < parts_; ++part) {
      const bool own = parts_ == 1 || part == nodes_.own();
      b_.reduce_locals(own ? operand(chunk, nodes_.own()) : sum(chunk, part),
                       b_.stage(unit(chunk, b_.local()) + part), first + part, first + part + 1,
                       true, false);
    }
    cross(chunk);
  }

  // Between the nodes: everyone's operands of this node's part, and when split the other parts.
  void cross(std::uint32_t chunk) {
    const bool split = parts_ > 1;
    const std::uint32_t first = mark(chunk, b_.local());
    const std::uint32_t own = split ? nodes_.own() : 0;
    for (std::uint32_t step = 1; step < nodes_.count(); ++step) {
      const std::uint32_t to = nodes_.after(step);
      const std::uint32_t from = nodes_.after(nodes_.count() - step);
      const std::uint32_t theirs = first + (split ? to : 0);
      b_.send(counterpart(to), split ? sum(chunk, to) : operand(chunk, nodes_.own()), theirs,
              theirs + 1);
      b_.recv(counterpart(from), operand(chunk, from), first + own, first + own + 1);
    }
    b_.reduce_units(result(chunk, own), operand(chunk, 0), nodes_.count(), kNoOwn, first + own,
                    first + own + 1, true);
    for (std::uint32_t step = 1; split && step < nodes_.count(); ++step) {
      const std::uint32_t to = nodes_.after(step);
      const std::uint32_t from = nodes_.after(nodes_.count() - step);
      b_.send(counterpart(to), result(chunk, own), first + own, first + own + 1);
      b_.recv(counterpart(from), result(chunk, from), first + from, first + from + 1);
    }
  }

  std::uint32_t counterpart(std::uint32_t node) const { return nodes_.rank_at(node, b_.local()); }

  void show(std::uint32_t chunk) {
    if (!has_lane()) {
      return;
    }
    const std::uint32_t first = mark(chunk, b_.local());
    b_.copy(b_.stage(unit(chunk, b_.local())), result(chunk, 0), first, first + parts_);
    b_.publish(kShown, chunk + 1);
    b_.copy(Builder::output(first), result(chunk, 0), first, first + parts_);
  }

  void collect(std::uint32_t chunk) {
    b_.await(kShown, chunk + 1, 0, lanes_);
    for (std::uint32_t step = 0; step < lanes_; ++step) {
      const std::uint32_t lane = (b_.local() + step) % lanes_;
      if (lane != b_.local()) {
        const std::uint32_t first = mark(chunk, lane);
        b_.copy(Builder::output(first), Builder::of_local(b_.stage(unit(chunk, lane)), lane), first,
                first + parts_);
      }
    }
    if (chunk + buffers_ < chunks_) {
      b_.publish(kResultsRead, chunk + 1);
    }
  }

  const Nodes nodes_;
  const std::uint32_t chunks_;
  const std::uint32_t buffers_;
  const std::uint32_t lead_;
  const std::uint32_t lanes_;
  const std::uint32_t parts_;
  Builder b_;
};

}  // namespace

Result<Schedule> lanes_all_reduce(const Request& request) {
  return Lanes(request, "lanes_all_reduce", request.topology.nodes() > 2).build();
}

Result<Schedule> exchange_all_reduce(const Request& request) {
  return Lanes(request, "exchange_all_reduce", false).build();
}

}  // namespace isthmus
