#include "collectives/algorithms/mapped.h"
#include "collectives/algorithms/mapped_pieces.h"

namespace isthmus {

namespace {

// Everyone shows its data in `place`, then everyone reduces all of it in rank order.
Result<Schedule> reduce_shown(Builder& b, Place place) {
  b.copy(place, Builder::input(0), 0, 1);
  announce(b);
  b.reduce_locals(Builder::output(0), place, 0, 1, true, true);
  return b.build();
}

Builder start_all_reduce(const Request& request, std::string_view name) {
  return start_mapped(request, OpKind::kAllReduce, name, whole_partition(request));
}

}  // namespace

Result<Schedule> line_all_reduce(const Request& request) {
  Builder b = start_all_reduce(request, "line_all_reduce");
  return reduce_shown(b, b.line());
}

Result<Schedule> slot_all_reduce(const Request& request) {
  Builder b = start_all_reduce(request, "slot_all_reduce");
  return reduce_shown(b, b.slot(0));
}

Result<Schedule> flat_all_reduce(const Request& request) {
  const Tuning& tuning = request.tuning;
  Builder b = start_all_reduce(request, "flat_all_reduce");
  return exchange_pieces(
      b, tuning,
      [&](std::uint32_t piece) {
        b.copy(b.stage(tuning.slot(piece)), Builder::input(piece), piece, piece + 1);
      },
      [&](std::uint32_t piece) {
        b.reduce_locals(Builder::output(piece), b.stage(tuning.slot(piece)), piece, piece + 1, true,
                        true);
      });
}

}  // namespace isthmus
