#include <algorithm>
#include <bit>
#include <vector>

#include "collectives/algorithms/mapped_pieces.h"
#include "collectives/algorithms/two_level_team.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStarted = 3;

Builder start_ranked(const Request& request, OpKind op, std::string_view name) {
  return start_schedule(request, op, name, ranked_partition(request), true);
}

// Which blocks each rank of this node holds in its staging: its own, and those of other nodes that
// it receives for the node.
class Holdings {
 public:
  Holdings(const Nodes& nodes, std::uint32_t ranks) : places_(ranks) {
    std::vector<std::uint32_t> held(nodes.locals(nodes.own()), 0);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::uint32_t local = nodes.node_of(rank) == nodes.own()
                                      ? nodes.local_of(rank)
                                      : nodes.carrier(nodes.own(), rank);
      places_[rank] = {Space::kStage, local, held[local]++};
      units_ = std::max(units_, held[local]);
    }
  }

  Place place(std::uint32_t rank, std::uint32_t slot) const {
    Place result = places_[rank];
    result.at += slot * units_;
    return result;
  }

 private:
  std::vector<Place> places_;
  std::uint32_t units_ = 0;
};

// two_level_all_gather, step by step.
class Gather {
 public:
  explicit Gather(const Request& request)
      : nodes_(request),
        tuning_(request.tuning),
        b_(start_ranked(request, OpKind::kAllGather, "two_level_all_gather")),
        holdings_(nodes_, b_.ranks()) {}

  Result<Schedule> build() {
    b_.publish(kAnnounceLine, 1);
    b_.await_all(kAnnounceLine, 1);
    if (b_.local() == 0) {
      nodes_.disseminate(b_);
    }
    std::uint32_t staged = 0;
    for (; staged < tuning_.pieces && staged <= tuning_.lead; ++staged) {
      stage(staged);
    }
    // The first pieces are on their way while the nodes learn that all have started.
    if (b_.local() == 0) {
      b_.publish(kStarted, 1);
    } else {
      b_.await(kStarted, 1, 0, 1);
    }
    b_.gate_output();
    for (std::uint32_t piece = 0; piece < tuning_.pieces; ++piece) {
      if (piece > 0 && staged < tuning_.pieces) {
        stage(staged++);
      }
      collect(piece);
    }
    return b_.build();
  }

 private:
  std::uint32_t mark(std::uint32_t rank, std::uint32_t piece) const {
    return rank * tuning_.pieces + piece;
  }

  void stage(std::uint32_t piece) {
    await_slot(b_, tuning_, piece);
    const std::uint32_t own = mark(b_.rank(), piece);
    b_.copy(holdings_.place(b_.rank(), tuning_.slot(piece)), Builder::input(piece), own, own + 1);
    pass_on(b_.rank(), Builder::input(piece), own);
    receive(piece, true);
    receive(piece, false);
    b_.publish(kStaged, piece + 1);
  }

  // What this rank receives for its node, `straight` from its owner or by way of another node: in
  // the order in which senders send.
  void receive(std::uint32_t piece, bool straight) {
    for (std::uint32_t rank = 0; rank < b_.ranks(); ++rank) {
      const Place place = holdings_.place(rank, tuning_.slot(piece));
      const std::uint32_t from = nodes_.by_way_of(nodes_.own(), rank);
      if (place.local != b_.local() || rank == b_.rank() ||
          straight != (from == nodes_.node_of(rank))) {
        continue;
      }
      const std::uint32_t block = mark(rank, piece);
      b_.recv(nodes_.stand_in(from, rank), place, block, block + 1);
      if (straight && nodes_.racks() > 1) {
        pass_on(rank, place, block);
      }
    }
  }

  // To the nodes that get the block of `rank` by way of this one.
  void pass_on(std::uint32_t rank, Place src, std::uint32_t block) {
    for (std::uint32_t step = 1; step < nodes_.count(); ++step) {
      const std::uint32_t node = nodes_.after(step);
      if (nodes_.by_way_of(node, rank) == nodes_.own()) {
        b_.send(nodes_.stand_in(node, rank), src, block, block + 1);
      }
    }
  }

  void collect(std::uint32_t piece) {
    b_.await_all(kStaged, piece + 1);
    for (std::uint32_t rank = 0; rank < b_.ranks(); ++rank) {
      const std::uint32_t block = mark(rank, piece);
      b_.copy(
          Builder::output(block),
          rank == b_.rank() ? Builder::input(piece) : holdings_.place(rank, tuning_.slot(piece)),
          block, block + 1);
    }
    publish_read(b_, tuning_, piece);
  }

  const Nodes nodes_;
  const Tuning tuning_;
  Builder b_;
  const Holdings holdings_;
};

// two_level_reduce_scatter, step by step. Staging unit r of a slot holds this rank's operand of
// rank r's block; scratch of a slot holds the sums of the own block that come from the nodes of
// this rack and from the other racks, in the order of nodes, then those of the blocks that this
// rank carries: this node's, or (last) the rack's and before it those of its nodes.
class Scatter {
 public:
  explicit Scatter(const Request& request)
      : nodes_(request),
        tuning_(request.tuning),
        b_(start_ranked(request, OpKind::kReduceScatter, "two_level_reduce_scatter")),
        rack_(Team::of_rack(nodes_)),
        units_(operands()) {
    for (std::uint32_t rank = 0; rank < b_.ranks(); ++rank) {
      const std::uint32_t home = nodes_.node_of(rank);
      if (home != nodes_.own() && nodes_.carrier(nodes_.own(), rank) == b_.local()) {
        // Where several nodes of a rack have operands for another one, one of them adds up.
        const bool adds = nodes_.rack_of(home) != nodes_.own_rack() && rack_.count > 1 &&
                          nodes_.by_way_of(nodes_.own(), rank) == home;
        carried_.push_back({rank, units_, adds ? rack_.count : 0});
        units_ += carried_.back().operands + 1;
      }
    }
  }

  Result<Schedule> build() {
    stage_ahead(
        tuning_, [this](std::uint32_t piece) { stage(piece); },
        [this](std::uint32_t piece) { reduce(piece); });
    return b_.build();
  }

 private:
  // A rank of another node whose block this rank sums up.
  struct Carried {
    std::uint32_t rank;
    std::uint32_t at;        // of its units
    std::uint32_t operands;  // sums of this rack's nodes; 0: this node's only
  };

  std::uint32_t mark(std::uint32_t rank, std::uint32_t piece) const {
    return rank * tuning_.pieces + piece;
  }

  Place operand(std::uint32_t piece, std::uint32_t rank) const {
    return b_.stage(tuning_.slot(piece) * b_.ranks() + rank);
  }

  Place sum(std::uint32_t piece, std::uint32_t index) const {
    return Builder::scratch(tuning_.slot(piece) * units_ + index);
  }

  // Sums of the own block: the nodes of this rack, and the other racks.
  std::uint32_t operands() const { return rack_.count + nodes_.racks() - 1; }

  std::uint32_t operand_of(std::uint32_t node) const {
    const std::uint32_t rack = nodes_.rack_of(node);
    if (rack == nodes_.own_rack()) {
      return rack + nodes_.place_of(node);
    }
    return rack < nodes_.own_rack() ? rack : rack + rack_.count - 1;
  }

  void stage(std::uint32_t piece) {
    await_slot(b_, tuning_, piece);
    auto next = carried_.begin();
    for (std::uint32_t rank = 0; rank < b_.ranks(); ++rank) {
      const bool carried = next != carried_.end() && next->rank == rank;
      next += carried ? 1 : 0;
      if (rank != b_.rank() && !carried) {
        b_.copy(operand(piece, rank), Builder::input(mark(rank, piece)), mark(rank, piece),
                mark(rank, piece) + 1);
      }
    }
    publish_staged(b_, piece);
  }

  void reduce(std::uint32_t piece) {
    await_staged(b_, piece);
    // In the order in which they are received: those that others add up come first.
    for (const bool straight : {false, true}) {
      for (const Carried& block : carried_) {
        const std::uint32_t next = nodes_.by_way_of(nodes_.own(), block.rank);
        if (straight == (next == nodes_.node_of(block.rank))) {
          hand_on(block, next, piece);
        }
      }
    }
    const std::uint32_t own = mark(b_.rank(), piece);
    b_.reduce_locals(sum(piece, operand_of(nodes_.own())), operand(piece, b_.rank()), own, own + 1,
                     true, false);
    publish_read(b_, tuning_, piece);
    for (std::uint32_t step = 1; step < nodes_.count(); ++step) {
      const std::uint32_t node = nodes_.after(step);
      if (nodes_.by_way_of(node, b_.rank()) == nodes_.own()) {
        b_.recv(nodes_.stand_in(node, b_.rank()), sum(piece, operand_of(node)), own, own + 1);
      }
    }
    b_.reduce_units(Builder::output(piece), sum(piece, 0), operands(), kNoOwnOperand, own, own + 1,
                    true);
  }

  // This node's sum of a block, or its rack's, to the next node towards the block's owner.
  void hand_on(const Carried& block, std::uint32_t next, std::uint32_t piece) {
    const std::uint32_t begin = mark(block.rank, piece);
    const std::uint32_t place = block.operands > 0 ? nodes_.place() : 0;
    const Place result = sum(piece, block.at + block.operands);
    b_.reduce_locals(sum(piece, block.at + place), operand(piece, block.rank), begin, begin + 1,
                     true, false);
    for (std::uint32_t step = 1; step < block.operands; ++step) {
      const std::uint32_t other = rack_.after(step);
      b_.recv(nodes_.stand_in(rack_.node(other), block.rank), sum(piece, block.at + other), begin,
              begin + 1);
    }
    if (block.operands > 0) {
      b_.reduce_units(result, sum(piece, block.at), block.operands, kNoOwnOperand, begin, begin + 1,
                      false);
    }
    b_.send(nodes_.stand_in(next, block.rank), result, begin, begin + 1);
  }

  const Nodes nodes_;
  const Tuning tuning_;
  Builder b_;
  const Team rack_;
  std::uint32_t units_;  // of a slot
  std::vector<Carried> carried_;
};

}  // namespace

Result<Schedule> two_level_all_gather(const Request& request) {
  return Gather(request).build();
}

Result<Schedule> two_level_reduce_scatter(const Request& request) {
  return Scatter(request).build();
}

}  // namespace isthmus
