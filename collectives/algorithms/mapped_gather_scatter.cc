#include "collectives/algorithms/mapped.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStaged = 1;
constexpr std::uint8_t kRead = 2;

Builder start_ranked(const Request& request, OpKind op, std::string_view name) {
  Builder b = start_schedule(request, op, name, ranked_partition(request), true);
  b.in_order();
  return b;
}

// Copies piece `piece` of every rank's block from `place` of its owner, the nearest owner first;
// this rank's own from its input.
void gather_piece(Builder& b, Place place, std::uint32_t piece, std::uint32_t pieces) {
  for (std::uint32_t step = 0; step < b.locals(); ++step) {
    const std::uint32_t owner = (b.local() + step) % b.locals();
    const std::uint32_t mark = owner * pieces + piece;
    const Place src = step == 0 ? Builder::input(piece) : Builder::of_local(place, owner);
    b.copy(Builder::output(mark), src, mark, mark + 1);
  }
}

Result<Schedule> gather_shown(Builder& b, Place place) {
  b.copy(place, Builder::input(0), b.local(), b.local() + 1);
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  gather_piece(b, place, 0, 1);
  return b.build();
}

}  // namespace

Result<Schedule> line_all_gather(const Request& request) {
  Builder b = start_ranked(request, OpKind::kAllGather, "line_all_gather");
  return gather_shown(b, b.line());
}

Result<Schedule> slot_all_gather(const Request& request) {
  Builder b = start_ranked(request, OpKind::kAllGather, "slot_all_gather");
  return gather_shown(b, b.slot(0));
}

Result<Schedule> staged_all_gather(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  const std::uint32_t slots = request.tuning.slots;
  Builder b = start_ranked(request, OpKind::kAllGather, "staged_all_gather");

  const auto stage_piece = [&](std::uint32_t piece) {
    if (piece >= slots) {
      b.await_all(kRead, piece - slots + 1);
    }
    const std::uint32_t own = b.local() * pieces + piece;
    b.copy(b.stage(request.tuning.slot(piece)), Builder::input(piece), own, own + 1);
    b.publish(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
  };

  std::uint32_t staged = 0;
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    for (; staged < pieces && staged <= piece + request.tuning.lead; ++staged) {
      stage_piece(staged);
    }
    b.await_all(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
    gather_piece(b, b.stage(request.tuning.slot(piece)), piece, pieces);
    if (piece + slots < pieces) {
      b.publish(kRead, piece + 1);
    }
  }
  return b.build();
}

namespace {

// All ranks stage pieces of their blocks, `lead` ahead of the piece that `take` gets: it finds this
// rank's data of every other rank in that rank's unit `place`.
template <typename Take>
Result<Schedule> exchange_staged(Builder& b, const Tuning& tuning, const Take& take) {
  const auto stage_piece = [&](std::uint32_t piece) {
    if (piece >= tuning.slots) {
      b.await_all(kRead, piece - tuning.slots + 1);
    }
    show_blocks(b, b.stage(tuning.slot(piece) * b.ranks()), piece, tuning.pieces);
    b.publish(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
  };

  std::uint32_t staged = 0;
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    for (; staged < tuning.pieces && staged <= piece + tuning.lead; ++staged) {
      stage_piece(staged);
    }
    b.await_all(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
    take(b.stage(tuning.slot(piece) * b.ranks() + b.local()), piece);
    if (piece + tuning.slots < tuning.pieces) {
      b.publish(kRead, piece + 1);
    }
  }
  return b.build();
}

// Piece `piece` of this rank's block of every rank, from `place` of its owner.
void take_blocks(Builder& b, Place place, std::uint32_t piece, std::uint32_t pieces) {
  for (std::uint32_t step = 0; step < b.locals(); ++step) {
    const std::uint32_t owner = (b.local() + step) % b.locals();
    const std::uint32_t mark = owner * pieces + piece;
    const Place src = step == 0 ? Builder::input(mark) : Builder::of_local(place, owner);
    b.copy(Builder::output(mark), src, mark, mark + 1);
  }
}

}  // namespace

void show_blocks(Builder& b, Place first, std::uint32_t piece, std::uint32_t pieces) {
  for (std::uint32_t step = 1; step < b.ranks(); ++step) {
    const std::uint32_t block = (b.local() + step) % b.ranks();
    const std::uint32_t mark = block * pieces + piece;
    Place unit = first;
    unit.at += block;
    b.copy(unit, Builder::input(mark), mark, mark + 1);
  }
}

Result<Schedule> slot_reduce_scatter(const Request& request) {
  Builder b = start_ranked(request, OpKind::kReduceScatter, "slot_reduce_scatter");
  show_blocks(b, b.slot(0), 0, 1);
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  b.reduce_locals(Builder::output(0), b.slot(b.local()), b.local(), b.local() + 1, true, true);
  return b.build();
}

Result<Schedule> staged_reduce_scatter(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_ranked(request, OpKind::kReduceScatter, "staged_reduce_scatter");
  return exchange_staged(b, request.tuning, [&](Place place, std::uint32_t piece) {
    const std::uint32_t own = b.local() * pieces + piece;
    b.reduce_locals(Builder::output(piece), place, own, own + 1, true, true);
  });
}

Result<Schedule> slot_all_to_all(const Request& request) {
  Builder b = start_ranked(request, OpKind::kAllToAll, "slot_all_to_all");
  show_blocks(b, b.slot(0), 0, 1);
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  take_blocks(b, b.slot(b.local()), 0, 1);
  return b.build();
}

Result<Schedule> staged_all_to_all(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_ranked(request, OpKind::kAllToAll, "staged_all_to_all");
  return exchange_staged(b, request.tuning, [&](Place place, std::uint32_t piece) {
    take_blocks(b, place, piece, pieces);
  });
}

}  // namespace isthmus
