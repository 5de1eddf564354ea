#include <bit>
#include <vector>

#include "collectives/algorithms/message.h"

namespace isthmus {

namespace {

// Ranks numbered by their distance from the root.
struct FromRoot {
  std::uint32_t root;
  std::uint32_t ranks;

  std::uint32_t index(std::uint32_t rank) const { return (rank + ranks - root) % ranks; }

  std::uint32_t rank(std::uint32_t index) const { return (index + root) % ranks; }
};

// Sums travel from `children` through this rank to `parent`; the root, which has none, is its own.
// Each piece in a slot of scratch units: this rank's sum, then the children's.
Result<Schedule> reduce_towards_root(Builder& b, const Request& request, std::uint32_t parent,
                                     const std::vector<std::uint32_t>& children) {
  const auto count = static_cast<std::uint32_t>(children.size());
  const bool root = b.rank() == request.root;
  for (std::uint32_t piece = 0; piece < request.tuning.pieces; ++piece) {
    const Place sum = Builder::scratch(request.tuning.slot(piece) * (count + 1));
    for (std::uint32_t child = 0; child < count; ++child) {
      b.recv(children[child], Builder::scratch(sum.at + 1 + child), piece, piece + 1);
    }
    if (count > 0) {
      b.reduce_units(root ? Builder::output(piece) : sum, sum, count + 1, 0, piece, piece + 1,
                     root);
    }
    if (!root) {
      b.send(parent, count > 0 ? sum : Builder::input(piece), piece, piece + 1);
    }
  }
  return b.build();
}

}  // namespace

Result<Schedule> tree_reduce(const Request& request) {
  Builder b =
      start_schedule(request, OpKind::kReduce, "tree_reduce", whole_partition(request), false);
  const FromRoot order = {request.root, b.ranks()};
  // The tree of tree_broadcast. Small subtrees are ready first.
  const std::uint32_t own = order.index(b.rank());
  const std::uint32_t top = own == 0 ? std::bit_ceil(b.ranks()) : own & (~own + 1);
  std::vector<std::uint32_t> children;
  for (std::uint32_t bit = 1; bit < top; bit *= 2) {
    if (own + bit < b.ranks()) {
      children.push_back(order.rank(own + bit));
    }
  }
  return reduce_towards_root(b, request, order.rank(own - (own == 0 ? 0 : top)), children);
}

Result<Schedule> chain_reduce(const Request& request) {
  Builder b =
      start_schedule(request, OpKind::kReduce, "chain_reduce", whole_partition(request), false);
  const FromRoot order = {request.root, b.ranks()};
  const std::uint32_t own = order.index(b.rank());
  std::vector<std::uint32_t> children;
  if (own + 1 < b.ranks()) {
    children.push_back(order.rank(own + 1));
  }
  return reduce_towards_root(b, request, order.rank(own + b.ranks() - 1), children);
}

Result<Schedule> direct_reduce(const Request& request) {
  Builder b =
      start_schedule(request, OpKind::kReduce, "direct_reduce", whole_partition(request), false);
  for (std::uint32_t piece = 0; piece < request.tuning.pieces; ++piece) {
    if (b.rank() != request.root) {
      b.send(request.root, Builder::input(piece), piece, piece + 1);
      continue;
    }
    const std::uint32_t base = request.tuning.slot(piece) * b.ranks();
    for (std::uint32_t step = 1; step < b.ranks(); ++step) {
      const std::uint32_t from = (b.rank() + step) % b.ranks();
      b.recv(from, Builder::scratch(base + from), piece, piece + 1);
    }
    b.reduce_units(Builder::output(piece), Builder::scratch(base), b.ranks(), b.rank(), piece,
                   piece + 1, true);
  }
  return b.build();
}

Result<Schedule> direct_gather(const Request& request) {
  Builder b =
      start_schedule(request, OpKind::kGather, "direct_gather", ranked_partition(request), false);
  const std::uint32_t own = b.rank();
  if (own != request.root) {
    b.signal(request.root);
    b.send(request.root, Builder::input(0), own, own + 1);
    return b.build();
  }
  // The data may come at once, but is taken when all have started.
  for (std::uint32_t step = 1; step < b.ranks(); ++step) {
    b.wait_signal((own + step) % b.ranks());
  }
  b.gate_output();
  b.copy(Builder::output(own), Builder::input(0), own, own + 1);
  for (std::uint32_t step = 1; step < b.ranks(); ++step) {
    const std::uint32_t from = (own + step) % b.ranks();
    b.recv(from, Builder::output(from), from, from + 1);
  }
  return b.build();
}

Result<Schedule> direct_scatter(const Request& request) {
  Builder b =
      start_schedule(request, OpKind::kScatter, "direct_scatter", ranked_partition(request), false);
  const std::uint32_t own = b.rank();
  if (own != request.root) {
    b.recv(request.root, Builder::output(0), own, own + 1);
    return b.build();
  }
  for (std::uint32_t step = 1; step < b.ranks(); ++step) {
    const std::uint32_t to = (own + step) % b.ranks();
    b.send(to, Builder::input(to), to, to + 1);
  }
  b.copy(Builder::output(0), Builder::input(own), own, own + 1);
  return b.build();
}

}  // namespace isthmus
