#include <algorithm>
#include <bit>
#include <vector>

#include "collectives/algorithms/mapped_pieces.h"
#include "collectives/algorithms/two_level.h"

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
    for (std::uint32_t step = 1; step < nodes_.count(); ++step) {
      const std::uint32_t node = nodes_.after(step);
      b_.send(nodes_.rank_at(node, nodes_.carrier(node, b_.rank())), Builder::input(piece), own,
              own + 1);
    }
    for (std::uint32_t rank = 0; rank < b_.ranks(); ++rank) {
      const Place place = holdings_.place(rank, tuning_.slot(piece));
      if (place.local == b_.local() && rank != b_.rank()) {
        b_.recv(rank, place, mark(rank, piece), mark(rank, piece) + 1);
      }
    }
    b_.publish(kStaged, piece + 1);
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
// rank r's block; scratch of a slot holds the nodes' sums of the own block, then this node's sums
// of the blocks that this rank carries.
class Scatter {
 public:
  explicit Scatter(const Request& request)
      : nodes_(request),
        tuning_(request.tuning),
        b_(start_ranked(request, OpKind::kReduceScatter, "two_level_reduce_scatter")) {
    for (std::uint32_t rank = 0; rank < b_.ranks(); ++rank) {
      if (nodes_.node_of(rank) != nodes_.own() &&
          nodes_.carrier(nodes_.own(), rank) == b_.local()) {
        carried_.push_back(rank);
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
  std::uint32_t mark(std::uint32_t rank, std::uint32_t piece) const {
    return rank * tuning_.pieces + piece;
  }

  Place operand(std::uint32_t piece, std::uint32_t rank) const {
    return b_.stage(tuning_.slot(piece) * b_.ranks() + rank);
  }

  Place sum(std::uint32_t piece, std::uint32_t index) const {
    const auto units = nodes_.count() + static_cast<std::uint32_t>(carried_.size());
    return Builder::scratch(tuning_.slot(piece) * units + index);
  }

  void stage(std::uint32_t piece) {
    await_slot(b_, tuning_, piece);
    for (std::uint32_t rank = 0; rank < b_.ranks(); ++rank) {
      const bool reduced_here =
          rank == b_.rank() || std::binary_search(carried_.begin(), carried_.end(), rank);
      if (!reduced_here) {
        b_.copy(operand(piece, rank), Builder::input(mark(rank, piece)), mark(rank, piece),
                mark(rank, piece) + 1);
      }
    }
    publish_staged(b_, piece);
  }

  void reduce(std::uint32_t piece) {
    await_staged(b_, piece);
    std::uint32_t index = nodes_.count();
    for (const std::uint32_t rank : carried_) {
      const std::uint32_t theirs = mark(rank, piece);
      b_.reduce_locals(sum(piece, index), operand(piece, rank), theirs, theirs + 1, true, false);
      b_.send(rank, sum(piece, index), theirs, theirs + 1);
      ++index;
    }
    const std::uint32_t own = mark(b_.rank(), piece);
    b_.reduce_locals(sum(piece, nodes_.own()), operand(piece, b_.rank()), own, own + 1, true,
                     false);
    publish_read(b_, tuning_, piece);
    for (std::uint32_t step = 1; step < nodes_.count(); ++step) {
      const std::uint32_t node = nodes_.after(step);
      b_.recv(nodes_.rank_at(node, nodes_.carrier(node, b_.rank())), sum(piece, node), own,
              own + 1);
    }
    b_.reduce_units(Builder::output(piece), sum(piece, 0), nodes_.count(), kNoOwnOperand, own,
                    own + 1, true);
  }

  const Nodes nodes_;
  const Tuning tuning_;
  Builder b_;
  std::vector<std::uint32_t> carried_;  // ranks of other nodes whose blocks this rank sums up
};

}  // namespace

Result<Schedule> two_level_all_gather(const Request& request) {
  return Gather(request).build();
}

Result<Schedule> two_level_reduce_scatter(const Request& request) {
  return Scatter(request).build();
}

}  // namespace isthmus
