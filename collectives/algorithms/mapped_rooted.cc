#include "collectives/algorithms/mapped.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStaged = 1;
constexpr std::uint8_t kRead = 2;

Builder start_rooted(const Request& request, OpKind op, std::string_view name,
                     const Partition& partition) {
  Builder b = start_schedule(request, op, name, partition, true);
  b.in_order();
  return b;
}

Partition whole(const Request& request) {
  return {false, request.tuning.pieces, 0};
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
  Builder b = start_rooted(request, OpKind::kBroadcast, "line_broadcast", whole(request));
  return broadcast_shown(b, b.line(), request.root);
}

Result<Schedule> slot_broadcast(const Request& request) {
  Builder b = start_rooted(request, OpKind::kBroadcast, "slot_broadcast", whole(request));
  return broadcast_shown(b, b.slot(0), request.root);
}

Result<Schedule> staged_broadcast(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  const std::uint32_t slots = request.tuning.slots;
  Builder b = start_rooted(request, OpKind::kBroadcast, "staged_broadcast", whole(request));
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
    if (piece == slots) {
      // Before it waits for readers: every rank may take itself for the root.
      b.await_all(kAnnounceLine, 1);
    }
    if (piece >= slots) {
      b.await_all(kRead, piece - slots + 1);
    }
    b.copy(b.stage(request.tuning.slot(piece)), Builder::output(piece), piece, piece + 1);
    b.publish(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
  }
  if (pieces <= slots) {
    b.await_all(kAnnounceLine, 1);
  }
  return b.build();
}

Result<Schedule> slot_scatter(const Request& request) {
  Builder b = start_rooted(request, OpKind::kScatter, "slot_scatter", ranked_partition(request));
  const std::uint32_t own = b.local();
  if (own == request.root) {
    show_blocks(b, b.slot(0), 0, 1);
  }
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  b.copy(Builder::output(0),
         own == request.root ? Builder::input(own) : Builder::of_local(b.slot(own), request.root),
         own, own + 1);
  return b.build();
}

Result<Schedule> staged_scatter(const Request& request) {
  const Tuning& tuning = request.tuning;
  Builder b = start_rooted(request, OpKind::kScatter, "staged_scatter", ranked_partition(request));
  const auto unit = [&](std::uint32_t piece) { return tuning.slot(piece) * b.ranks(); };
  const std::uint32_t own = b.local() * tuning.pieces;
  if (b.local() != request.root) {
    b.publish(kAnnounceLine, 1);
    b.await_all(kAnnounceLine, 1);
    for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
      if (piece > 0) {
        b.await(kStaged, piece + 1, request.root, 1);
      }
      b.copy(Builder::output(piece),
             Builder::of_local(b.stage(unit(piece) + b.local()), request.root), own + piece,
             own + piece + 1);
      if (piece + tuning.slots < tuning.pieces) {
        b.publish(kRead, piece + 1);
      }
    }
    return b.build();
  }
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    if (piece == tuning.slots) {
      b.await_all(kAnnounceLine, 1);
    }
    if (piece >= tuning.slots) {
      b.await_all(kRead, piece - tuning.slots + 1);
    }
    show_blocks(b, b.stage(unit(piece)), piece, tuning.pieces);
    b.publish(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
    b.copy(Builder::output(piece), Builder::input(own + piece), own + piece, own + piece + 1);
  }
  if (tuning.pieces <= tuning.slots) {
    b.await_all(kAnnounceLine, 1);
  }
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
