#include "collectives/algorithms/mapped.h"
#include "collectives/algorithms/mapped_pieces.h"

namespace isthmus {

namespace {

// The root, too, waits for everyone's announcement: it costs a flag's way there and back, and no
// rank's mistake passes unseen.
Result<Schedule> broadcast_shown(Builder& b, Place place, std::uint32_t root) {
  if (b.local() == root) {
    b.copy(place, Builder::output(0), 0, 1);
  }
  announce(b);
  if (b.local() != root) {
    b.copy(Builder::output(0), Builder::of_local(place, root), 0, 1);
  }
  return b.build();
}

Builder start_broadcast(const Request& request, std::string_view name) {
  return start_mapped(request, OpKind::kBroadcast, name, whole_partition(request));
}

Builder start_scatter(const Request& request, std::string_view name) {
  return start_mapped(request, OpKind::kScatter, name, ranked_partition(request));
}

}  // namespace

Result<Schedule> line_broadcast(const Request& request) {
  Builder b = start_broadcast(request, "line_broadcast");
  return broadcast_shown(b, b.line(), request.root);
}

Result<Schedule> slot_broadcast(const Request& request) {
  Builder b = start_broadcast(request, "slot_broadcast");
  return broadcast_shown(b, b.slot(0), request.root);
}

Result<Schedule> staged_broadcast(const Request& request) {
  const Tuning& tuning = request.tuning;
  Builder b = start_broadcast(request, "staged_broadcast");
  if (b.local() != request.root) {
    return take_from_root(b, tuning, request.root, [&](std::uint32_t piece) {
      b.copy(Builder::output(piece), Builder::of_local(b.stage(tuning.slot(piece)), request.root),
             piece, piece + 1);
    });
  }
  return show_pieces(
      b, tuning, 0, b.locals(),
      [&](std::uint32_t piece) {
        b.copy(b.stage(tuning.slot(piece)), Builder::output(piece), piece, piece + 1);
      },
      [](std::uint32_t) {});
}

Result<Schedule> slot_scatter(const Request& request) {
  Builder b = start_scatter(request, "slot_scatter");
  const std::uint32_t own = b.local();
  if (own == request.root) {
    show_blocks(b, b.slot(0), 0, 1);
  }
  announce(b);
  b.copy(Builder::output(0),
         own == request.root ? Builder::input(own) : Builder::of_local(b.slot(own), request.root),
         own, own + 1);
  return b.build();
}

Result<Schedule> staged_scatter(const Request& request) {
  const Tuning& tuning = request.tuning;
  Builder b = start_scatter(request, "staged_scatter");
  const auto unit = [&](std::uint32_t piece) { return tuning.slot(piece) * b.ranks(); };
  const std::uint32_t own = b.local() * tuning.pieces;
  const auto copy_own = [&](Place src, std::uint32_t piece) {
    b.copy(Builder::output(piece), src, own + piece, own + piece + 1);
  };
  if (b.local() != request.root) {
    return take_from_root(b, tuning, request.root, [&](std::uint32_t piece) {
      copy_own(Builder::of_local(b.stage(unit(piece) + b.local()), request.root), piece);
    });
  }
  return show_pieces(
      b, tuning, 0, b.locals(),
      [&](std::uint32_t piece) { show_blocks(b, b.stage(unit(piece)), piece, tuning.pieces); },
      [&](std::uint32_t piece) { copy_own(Builder::input(own + piece), piece); });
}

Result<Schedule> line_barrier(const Request& request) {
  Builder b = start_mapped(request, OpKind::kBarrier, "line_barrier", {});
  announce(b);
  return b.build();
}

}  // namespace isthmus
