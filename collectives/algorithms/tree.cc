#include <bit>

#include "collectives/algorithms/message.h"

namespace isthmus {

Result<Schedule> tree_broadcast(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_schedule(request, OpKind::kBroadcast, "tree_broadcast",
                             whole_partition(request), false);
  // A binomial tree over the distance from the root: without its lowest set bit a number names its
  // parent; adding a lower bit names a child. Larger subtrees are served first.
  const std::uint32_t own = (b.rank() + b.ranks() - request.root) % b.ranks();
  const auto rank_of = [&](std::uint32_t index) { return (index + request.root) % b.ranks(); };
  const std::uint32_t top = own == 0 ? std::bit_ceil(b.ranks()) : own & (~own + 1);
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    if (own != 0) {
      b.recv(rank_of(own - top), Builder::output(piece), piece, piece + 1);
    }
    for (std::uint32_t bit = top / 2; bit > 0; bit /= 2) {
      if (own + bit < b.ranks()) {
        b.send(rank_of(own + bit), Builder::output(piece), piece, piece + 1);
      }
    }
  }
  return b.build();
}

Result<Schedule> chain_broadcast(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_schedule(request, OpKind::kBroadcast, "chain_broadcast",
                             whole_partition(request), false);
  const std::uint32_t own = (b.rank() + b.ranks() - request.root) % b.ranks();
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    if (own != 0) {
      b.recv((b.rank() + b.ranks() - 1) % b.ranks(), Builder::output(piece), piece, piece + 1);
    }
    if (own + 1 < b.ranks()) {
      b.send((b.rank() + 1) % b.ranks(), Builder::output(piece), piece, piece + 1);
    }
  }
  return b.build();
}

}  // namespace isthmus
