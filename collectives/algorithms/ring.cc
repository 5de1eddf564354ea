#include <algorithm>

#include "collectives/algorithms/message.h"

namespace isthmus {

namespace {

// Blocks go around the ring, each in `pieces` segments that follow one another.
struct Ring {
  Builder b;
  std::uint32_t pieces;
  std::uint32_t slots;

  std::uint32_t next() const { return (b.rank() + 1) % b.ranks(); }

  std::uint32_t previous() const { return (b.rank() + b.ranks() - 1) % b.ranks(); }

  // Block `steps` places before `block`, as a mark of its segment.
  std::uint32_t before(std::uint32_t block, std::uint32_t steps, std::uint32_t segment) const {
    return (block + 2 * b.ranks() - steps) % b.ranks() * pieces + segment;
  }

  Place unit(std::uint32_t step, std::uint32_t segment) const {
    return Builder::scratch(step % slots * pieces + segment);
  }

  // P - 1 steps, each of which hands partial sums to the next rank and adds an operand to those of
  // the previous one. This rank begins with block `first` and ends with the sum of the block after
  // it, in the units of step P - 2.
  void reduce_scatter(std::uint32_t first) {
    for (std::uint32_t step = 0; step + 1 < b.ranks(); ++step) {
      for (std::uint32_t segment = 0; segment < pieces; ++segment) {
        const std::uint32_t out = before(first, step, segment);
        const std::uint32_t in = before(first, step + 1, segment);
        b.send(next(), step == 0 ? Builder::input(out) : unit(step - 1, segment), out, out + 1);
        b.recv(previous(), unit(step, segment), in, in + 1);
        b.reduce(unit(step, segment), Builder::input(in), in, in + 1, step + 2 == b.ranks());
      }
    }
  }

  // P - 1 steps: blocks that are whole travel on, `first` is this rank's own.
  void all_gather(std::uint32_t first, bool own_from_input) {
    for (std::uint32_t step = 0; step + 1 < b.ranks(); ++step) {
      for (std::uint32_t segment = 0; segment < pieces; ++segment) {
        const std::uint32_t out = before(first, step, segment);
        const std::uint32_t in = before(first, step + 1, segment);
        const bool own = step == 0 && own_from_input;
        b.send(next(), own ? Builder::input(segment) : Builder::output(out), out, out + 1);
        b.recv(previous(), Builder::output(in), in, in + 1);
      }
    }
  }
};

std::uint32_t ranks_of(const Request& request) {
  return static_cast<std::uint32_t>(request.topology.ranks());
}

Ring start_ring(const Request& request, OpKind op, std::string_view name, bool ranked) {
  const std::uint32_t pieces = request.tuning.pieces;
  const std::uint32_t ranks = ranks_of(request);
  const Partition partition =
      ranked ? ranked_partition(request) : Partition{false, ranks * pieces, 0};
  // With one unit per segment every rank would wait for the next one's receive before its own.
  return {start_schedule(request, op, name, partition, false), pieces,
          std::max(request.tuning.slots, 2U)};
}

}  // namespace

Result<Schedule> ring_all_reduce(const Request& request) {
  Ring ring = start_ring(request, OpKind::kAllReduce, "ring_all_reduce", false);
  Builder& b = ring.b;
  const std::uint32_t own = (b.rank() + 1) % b.ranks();
  ring.reduce_scatter(b.rank());
  for (std::uint32_t segment = 0; segment < ring.pieces; ++segment) {
    const std::uint32_t mark = own * ring.pieces + segment;
    b.copy(Builder::output(mark), ring.unit(b.ranks() - 2, segment), mark, mark + 1);
  }
  ring.all_gather(own, false);
  return b.build();
}

Result<Schedule> ring_reduce_scatter(const Request& request) {
  Ring ring = start_ring(request, OpKind::kReduceScatter, "ring_reduce_scatter", true);
  Builder& b = ring.b;
  ring.reduce_scatter((b.rank() + b.ranks() - 1) % b.ranks());
  for (std::uint32_t segment = 0; segment < ring.pieces; ++segment) {
    const std::uint32_t mark = b.rank() * ring.pieces + segment;
    b.copy(Builder::output(segment), ring.unit(b.ranks() - 2, segment), mark, mark + 1);
  }
  return b.build();
}

Result<Schedule> ring_all_gather(const Request& request) {
  Ring ring = start_ring(request, OpKind::kAllGather, "ring_all_gather", true);
  Builder& b = ring.b;
  // A neighbour's block arrives before the others are known to have started.
  disseminate(b);
  b.gate_output();
  ring.all_gather(b.rank(), true);
  const std::uint32_t own = b.rank() * ring.pieces;
  b.copy(Builder::output(own), Builder::input(0), own, own + ring.pieces);
  return b.build();
}

}  // namespace isthmus
