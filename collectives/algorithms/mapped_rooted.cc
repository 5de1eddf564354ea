#include "collectives/algorithms/mapped.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStaged = 1;
constexpr std::uint8_t kRead = 2;

Builder start_rooted(const Request& request, std::string_view name) {
  Builder b =
      start_schedule(request, OpKind::kBroadcast, name, {false, request.tuning.pieces, 0}, true);
  b.in_order();
  return b;
}

// The root, too, waits for everyone's announcement: it costs a flag's way there and back, and no
// rank's mistake passes unseen.
Result<Schedule> broadcast_shown(Builder& b, Place place, std::uint32_t root) {
  if (b.local() == root) {
    b.copy(place, Builder::output(0), 0, 1);
  }
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  if (b.local() != root) {
    b.copy(Builder::output(0), Builder::of_local(place, root), 0, 1);
  }
  return b.build();
}

}  // namespace

Result<Schedule> line_broadcast(const Request& request) {
  Builder b = start_rooted(request, "line_broadcast");
  return broadcast_shown(b, b.line(), request.root);
}

Result<Schedule> slot_broadcast(const Request& request) {
  Builder b = start_rooted(request, "slot_broadcast");
  return broadcast_shown(b, b.slot(0), request.root);
}

Result<Schedule> staged_broadcast(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  const std::uint32_t slots = request.tuning.slots;
  Builder b = start_rooted(request, "staged_broadcast");
  if (b.local() != request.root) {
    b.publish(kAnnounceLine, 1);
    b.await_all(kAnnounceLine, 1);
    for (std::uint32_t piece = 0; piece < pieces; ++piece) {
      if (piece > 0) {
        b.await(kStaged, piece + 1, request.root, 1);
      }
      b.copy(Builder::output(piece),
             Builder::of_local(b.stage(request.tuning.slot(piece)), request.root), piece,
             piece + 1);
      if (piece + slots < pieces) {
        b.publish(kRead, piece + 1);
      }
    }
    return b.build();
  }
  // The root fills all slots, then waits for the readers of the oldest.
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    if (piece >= slots) {
      b.await_all(kRead, piece - slots + 1);
    }
    b.copy(b.stage(request.tuning.slot(piece)), Builder::output(piece), piece, piece + 1);
    b.publish(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
  }
  b.await_all(kAnnounceLine, 1);
  return b.build();
}

Result<Schedule> line_barrier(const Request& request) {
  Builder b = start_schedule(request, OpKind::kBarrier, "line_barrier", {}, true);
  b.in_order();
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  return b.build();
}

}  // namespace isthmus
