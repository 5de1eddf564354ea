#include "collectives/algorithms/mapped.h"
#include "collectives/algorithms/mapped_pieces.h"

namespace isthmus {

namespace {

Builder start_ranked(const Request& request, OpKind op, std::string_view name) {
  return start_mapped(request, op, name, ranked_partition(request));
}

Result<Schedule> gather_shown(Builder& b, Place place) {
  b.copy(place, Builder::input(0), b.local(), b.local() + 1);
  announce(b);
  gather_blocks(b, place, 0, 0, 1);
  return b.build();
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

void gather_blocks(Builder& b, Place place, std::uint32_t own, std::uint32_t piece,
                   std::uint32_t pieces) {
  for (std::uint32_t step = 0; step < b.locals(); ++step) {
    const std::uint32_t owner = (b.local() + step) % b.locals();
    const std::uint32_t mark = owner * pieces + piece;
    const Place src = step == 0 ? Builder::input(own) : Builder::of_local(place, owner);
    b.copy(Builder::output(mark), src, mark, mark + 1);
  }
}

Result<Schedule> line_all_gather(const Request& request) {
  Builder b = start_ranked(request, OpKind::kAllGather, "line_all_gather");
  return gather_shown(b, b.line());
}

Result<Schedule> slot_all_gather(const Request& request) {
  Builder b = start_ranked(request, OpKind::kAllGather, "slot_all_gather");
  return gather_shown(b, b.slot(0));
}

Result<Schedule> staged_all_gather(const Request& request) {
  const Tuning& tuning = request.tuning;
  Builder b = start_ranked(request, OpKind::kAllGather, "staged_all_gather");
  return exchange_pieces(
      b, tuning,
      [&](std::uint32_t piece) {
        const std::uint32_t own = b.local() * tuning.pieces + piece;
        b.copy(b.stage(tuning.slot(piece)), Builder::input(piece), own, own + 1);
      },
      [&](std::uint32_t piece) {
        gather_blocks(b, b.stage(tuning.slot(piece)), piece, piece, tuning.pieces);
      });
}

namespace {

// `take` finds this rank's data of every other rank in that rank's unit `place`.
template <typename Take>
Result<Schedule> exchange_blocks(Builder& b, const Tuning& tuning, const Take& take) {
  const auto unit = [&](std::uint32_t piece) { return tuning.slot(piece) * b.ranks(); };
  return exchange_pieces(
      b, tuning,
      [&](std::uint32_t piece) { show_blocks(b, b.stage(unit(piece)), piece, tuning.pieces); },
      [&](std::uint32_t piece) { take(b.stage(unit(piece) + b.local()), piece); });
}

}  // namespace

namespace {

// Of two ranks: this one's line holds the other's block.
void show_other_block(Builder& b) {
  const std::uint32_t other = 1 - b.local();
  b.copy(b.line(), Builder::input(other), other, other + 1);
  announce(b);
}

}  // namespace

Result<Schedule> line_reduce_scatter(const Request& request) {
  Builder b = start_ranked(request, OpKind::kReduceScatter, "line_reduce_scatter");
  show_other_block(b);
  b.reduce_locals(Builder::output(0), b.line(), b.local(), b.local() + 1, true, true);
  return b.build();
}

Result<Schedule> slot_reduce_scatter(const Request& request) {
  Builder b = start_ranked(request, OpKind::kReduceScatter, "slot_reduce_scatter");
  show_blocks(b, b.slot(0), 0, 1);
  announce(b);
  b.reduce_locals(Builder::output(0), b.slot(b.local()), b.local(), b.local() + 1, true, true);
  return b.build();
}

Result<Schedule> staged_reduce_scatter(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_ranked(request, OpKind::kReduceScatter, "staged_reduce_scatter");
  return exchange_blocks(b, request.tuning, [&](Place place, std::uint32_t piece) {
    const std::uint32_t own = b.local() * pieces + piece;
    b.reduce_locals(Builder::output(piece), place, own, own + 1, true, true);
  });
}

Result<Schedule> line_all_to_all(const Request& request) {
  Builder b = start_ranked(request, OpKind::kAllToAll, "line_all_to_all");
  show_other_block(b);
  gather_blocks(b, b.line(), b.local(), 0, 1);
  return b.build();
}

Result<Schedule> slot_all_to_all(const Request& request) {
  Builder b = start_ranked(request, OpKind::kAllToAll, "slot_all_to_all");
  show_blocks(b, b.slot(0), 0, 1);
  announce(b);
  gather_blocks(b, b.slot(b.local()), b.local(), 0, 1);
  return b.build();
}

Result<Schedule> staged_all_to_all(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_ranked(request, OpKind::kAllToAll, "staged_all_to_all");
  return exchange_blocks(b, request.tuning, [&](Place place, std::uint32_t piece) {
    gather_blocks(b, place, b.local() * pieces + piece, piece, pieces);
  });
}

}  // namespace isthmus
