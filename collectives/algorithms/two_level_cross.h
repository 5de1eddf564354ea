#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "collectives/algorithms/two_level.h"

namespace isthmus {

// How the counterparts of several nodes combine their sums of a slice, for what goes chunk by chunk
// through lanes of its own: see Lanes.

// Between nodes, all with all: whole slices are exchanged, or (split) each node combines one part
// and sends the result back. All operands are combined at once: one rounding.
class AtOnce {
 public:
  AtOnce(const Request& request, bool split)
      : nodes_(request), parts_(split ? nodes_.count() : 1) {}

  std::uint32_t parts() const { return parts_; }

  // The nodes' operands of this node's part, the result's parts, and (when split) this node's sums
  // for the other nodes' parts.
  std::uint32_t units() const { return nodes_.count() + (parts_ > 1 ? 2 * parts_ : 1); }

  std::uint32_t result() const { return nodes_.count(); }

  void run(Builder& b, Place operands, std::uint32_t first, std::uint32_t base) const {
    for (std::uint32_t part = 0; part < parts_; ++part) {
      const bool own = parts_ == 1 || part == nodes_.own();
      const Place from = {operands.space, operands.local, operands.at + part};
      b.reduce_locals(own ? operand(base, nodes_.own()) : sum(base, part), from, first + part,
                      first + part + 1, true, false);
    }
    cross(b, first, base);
  }

 private:
  static Place operand(std::uint32_t base, std::uint32_t node) {
    return Builder::scratch(base + node);
  }

  Place done(std::uint32_t base, std::uint32_t part) const {
    return Builder::scratch(base + result() + part);
  }

  Place sum(std::uint32_t base, std::uint32_t part) const {
    return Builder::scratch(base + result() + parts_ + part);
  }

  // Everyone's operands of this node's part, and when split the other parts.
  void cross(Builder& b, std::uint32_t first, std::uint32_t base) const {
    const bool split = parts_ > 1;
    const std::uint32_t own = split ? nodes_.own() : 0;
    for (std::uint32_t step = 1; step < nodes_.count(); ++step) {
      const std::uint32_t to = nodes_.after(step);
      const std::uint32_t from = nodes_.after(nodes_.count() - step);
      const std::uint32_t theirs = first + (split ? to : 0);
      b.send(nodes_.rank_at(to, b.local()), split ? sum(base, to) : operand(base, nodes_.own()),
             theirs, theirs + 1);
      b.recv(nodes_.rank_at(from, b.local()), operand(base, from), first + own, first + own + 1);
    }
    b.reduce_units(done(base, own), operand(base, 0), nodes_.count(), kNoOwnOperand, first + own,
                   first + own + 1, true);
    for (std::uint32_t step = 1; split && step < nodes_.count(); ++step) {
      const std::uint32_t to = nodes_.after(step);
      const std::uint32_t from = nodes_.after(nodes_.count() - step);
      b.send(nodes_.rank_at(to, b.local()), done(base, own), first + own, first + own + 1);
      b.recv(nodes_.rank_at(from, b.local()), done(base, from), first + from, first + from + 1);
    }
  }

  const Nodes nodes_;
  const std::uint32_t parts_;
};

struct WholeSlices : AtOnce {
  explicit WholeSlices(const Request& request) : AtOnce(request, false) {}
};

struct SplitSlices : AtOnce {
  explicit SplitSlices(const Request& request) : AtOnce(request, request.topology.nodes() > 2) {}
};

// Between nodes, two at a time, in log2(nodes) rounds: the first `halvings` of them exchange halves
// of what each still has sums of and keep one (so a slice has 2^halvings parts), the others
// exchange all that is left, one part; then the halves come back. Nodes beyond a power of two give
// their slices to a neighbour first and get the result from it. Near nodes exchange the most.
//
// Of two sums that of the lower index is the left operand: each part is combined by one tree. All
// happens in the slice's own units; every first receive has units of its own, so it can be posted
// at once. Receives of results wait until the same partner has taken what they replace, which it
// did before it sent them.
class InTurn {
 public:
  InTurn(const Request& request, std::uint32_t halvings)
      : nodes_(request),
        rounds_(log2_floor(nodes_.count())),
        halvings_(std::min(halvings, rounds_)),
        folded_(nodes_.count() - (1U << rounds_)),
        pairs_(nodes_.own() < 2 * folded_) {}

  std::uint32_t parts() const { return 1U << halvings_; }

  // The slice, halves of it that arrive, parts that arrive, and a folded node's slice.
  std::uint32_t units() const {
    return parts() + (parts() - 1) + (rounds_ - halvings_) + (folded_ > 0 ? parts() : 0);
  }

  static constexpr std::uint32_t result() { return 0; }

  void run(Builder& b, Place operands, std::uint32_t first, std::uint32_t base) const {
    const Span all = {0, parts()};
    const Place slice = Builder::scratch(base);
    b.reduce_locals(slice, operands, first, first + parts(), true, false);
    if (pairs_ && nodes_.own() % 2 == 1) {
      send(b, nodes_.own() - 1, first, base, all);
      recv(b, nodes_.own() - 1, first, base, all);
      return;
    }
    std::uint32_t free = base + parts();
    if (pairs_) {
      take(b, nodes_.own() + 1, first, base, all, &free, false);
    }
    Span held = all;
    for (std::uint32_t round = 0; round < rounds_; ++round) {
      const std::uint32_t partner = node_of(index() ^ (1U << round));
      const Span kept = round < halvings_ ? half(held, round, true) : held;
      send(b, partner, first, base, round < halvings_ ? half(held, round, false) : held);
      take(b, partner, first, base, kept, &free, round + 1 == rounds_);
      held = kept;
    }
    for (std::uint32_t round = halvings_; round-- > 0;) {
      const std::uint32_t partner = node_of(index() ^ (1U << round));
      const Span missing = {held.begin ^ held.count, held.count};
      send(b, partner, first, base, held);
      recv(b, partner, first, base, missing);
      held = {std::min(held.begin, missing.begin), 2 * held.count};
    }
    if (pairs_) {
      send(b, nodes_.own() + 1, first, base, all);
    }
  }

 private:
  // Parts of a slice.
  struct Span {
    std::uint32_t begin;
    std::uint32_t count;
  };

  static std::uint32_t log2_floor(std::uint32_t count) {
    return static_cast<std::uint32_t>(std::bit_width(count)) - 1;
  }

  // Among the nodes that take part in the rounds.
  std::uint32_t index() const { return pairs_ ? nodes_.own() / 2 : nodes_.own() - folded_; }

  std::uint32_t node_of(std::uint32_t index) const {
    return index < folded_ ? 2 * index : index + folded_;
  }

  // The half that this node keeps in a round, or the one that it gives.
  Span half(Span held, std::uint32_t round, bool kept) const {
    const bool upper = ((index() >> round) & 1U) == (kept ? 1U : 0U);
    return {held.begin + (upper ? held.count / 2 : 0), held.count / 2};
  }

  std::uint32_t peer(const Builder& b, std::uint32_t node) const {
    return nodes_.rank_at(node, b.local());
  }

  void send(Builder& b, std::uint32_t node, std::uint32_t first, std::uint32_t base,
            Span span) const {
    b.send(peer(b, node), Builder::scratch(base + span.begin), first + span.begin,
           first + span.begin + span.count);
  }

  void recv(Builder& b, std::uint32_t node, std::uint32_t first, std::uint32_t base,
            Span span) const {
    b.recv(peer(b, node), Builder::scratch(base + span.begin), first + span.begin,
           first + span.begin + span.count);
  }

  // Receives another node's sums of a span into units from `free` on, and adds them to this one's.
  // NOLINTNEXTLINE(readability-function-size): where the span lies takes four of its parameters
  void take(Builder& b, std::uint32_t node, std::uint32_t first, std::uint32_t base, Span span,
            std::uint32_t* free, bool finish) const {
    const Place theirs = Builder::scratch(*free);
    const std::uint32_t begin = first + span.begin;
    *free += span.count;
    b.recv(peer(b, node), theirs, begin, begin + span.count);
    b.reduce(Builder::scratch(base + span.begin), theirs, begin, begin + span.count, finish,
             node < nodes_.own());
  }

  const Nodes nodes_;
  const std::uint32_t rounds_;
  const std::uint32_t halvings_;
  const std::uint32_t folded_;  // odd nodes below twice this only give and get
  const bool pairs_;
};

struct HalvedSlices : InTurn {
  explicit HalvedSlices(const Request& request) : InTurn(request, request.tuning.halvings) {}
};

}  // namespace isthmus
