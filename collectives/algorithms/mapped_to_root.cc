#include "collectives/algorithms/mapped.h"
#include "collectives/algorithms/mapped_pieces.h"

namespace isthmus {

namespace {

// Every rank but the root shows its data, which begins at mark `own`; the root, having seen all,
// takes it.
void show_to_root(Builder& b, Place place, std::uint32_t own, std::uint32_t root) {
  if (b.local() != root) {
    b.copy(place, Builder::input(0), own, own + 1);
  }
  announce(b);
}

// The same piece by piece: what all ranks but the root do.
Result<Schedule> stage_for_root(Builder& b, const Request& request, std::uint32_t own) {
  return show_pieces(
      b, request.tuning, request.root, 1,
      [&](std::uint32_t piece) {
        b.copy(b.stage(request.tuning.slot(piece)), Builder::input(piece), own + piece,
               own + piece + 1);
      },
      [](std::uint32_t) {});
}

Builder start_reduce(const Request& request, std::string_view name) {
  return start_mapped(request, OpKind::kReduce, name, whole_partition(request));
}

Builder start_gather(const Request& request, std::string_view name) {
  return start_mapped(request, OpKind::kGather, name, ranked_partition(request));
}

Result<Schedule> reduce_shown(Builder& b, Place place, std::uint32_t root) {
  show_to_root(b, place, 0, root);
  if (b.local() == root) {
    b.reduce_locals(Builder::output(0), place, 0, 1, true, true);
  }
  return b.build();
}

Result<Schedule> gather_shown(Builder& b, Place place, std::uint32_t root) {
  show_to_root(b, place, b.local(), root);
  if (b.local() == root) {
    gather_blocks(b, place, 0, 0, 1);
  }
  return b.build();
}

}  // namespace

Result<Schedule> line_reduce(const Request& request) {
  Builder b = start_reduce(request, "line_reduce");
  return reduce_shown(b, b.line(), request.root);
}

Result<Schedule> slot_reduce(const Request& request) {
  Builder b = start_reduce(request, "slot_reduce");
  return reduce_shown(b, b.slot(0), request.root);
}

Result<Schedule> flat_reduce(const Request& request) {
  const Tuning& tuning = request.tuning;
  Builder b = start_reduce(request, "flat_reduce");
  if (b.local() != request.root) {
    return stage_for_root(b, request, 0);
  }
  return take_from_all(b, tuning, [&](std::uint32_t piece) {
    b.reduce_locals(Builder::output(piece), b.stage(tuning.slot(piece)), piece, piece + 1, true,
                    true);
  });
}

Result<Schedule> line_gather(const Request& request) {
  Builder b = start_gather(request, "line_gather");
  return gather_shown(b, b.line(), request.root);
}

Result<Schedule> slot_gather(const Request& request) {
  Builder b = start_gather(request, "slot_gather");
  return gather_shown(b, b.slot(0), request.root);
}

Result<Schedule> staged_gather(const Request& request) {
  const Tuning& tuning = request.tuning;
  Builder b = start_gather(request, "staged_gather");
  if (b.local() != request.root) {
    return stage_for_root(b, request, b.local() * tuning.pieces);
  }
  return take_from_all(b, tuning, [&](std::uint32_t piece) {
    gather_blocks(b, b.stage(tuning.slot(piece)), piece, piece, tuning.pieces);
  });
}

}  // namespace isthmus
