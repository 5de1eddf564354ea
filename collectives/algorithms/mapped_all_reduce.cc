#include <algorithm>

#include "collectives/algorithms/mapped.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStaged = 1;
constexpr std::uint8_t kRead = 2;
constexpr std::uint8_t kReduced = 2;
constexpr std::uint8_t kResultsRead = 3;

constexpr Partition kWhole = {};

// Everyone shows its data in `place`, then everyone reduces all of it in rank order.
Result<Schedule> reduce_shown(Builder& b, Place place) {
  b.copy(place, Builder::input(0), 0, 1);
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
  b.reduce_locals(Builder::output(0), place, 0, 1, true, true);
  return b.build();
}

}  // namespace

Result<Schedule> line_all_reduce(const Request& request) {
  Builder b = start_schedule(request, OpKind::kAllReduce, "line_all_reduce", kWhole, true);
  b.in_order();
  return reduce_shown(b, b.line());
}

Result<Schedule> slot_all_reduce(const Request& request) {
  Builder b = start_schedule(request, OpKind::kAllReduce, "slot_all_reduce", kWhole, true);
  b.in_order();
  return reduce_shown(b, b.slot(0));
}

Result<Schedule> flat_all_reduce(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  const std::uint32_t slots = request.tuning.slots;
  Builder b =
      start_schedule(request, OpKind::kAllReduce, "flat_all_reduce", {false, pieces, 0}, true);
  b.in_order();

  // The announcement doubles as "piece 0 is staged": one cache line less to wait for.
  const auto stage_piece = [&](std::uint32_t piece) {
    if (piece >= slots) {
      b.await_all(kRead, piece - slots + 1);
    }
    b.copy(b.stage(request.tuning.slot(piece)), Builder::input(piece), piece, piece + 1);
    b.publish(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
  };

  std::uint32_t staged = 0;
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    for (; staged < pieces && staged <= piece + request.tuning.lead; ++staged) {
      stage_piece(staged);
    }
    b.await_all(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
    b.reduce_locals(Builder::output(piece), b.stage(request.tuning.slot(piece)), piece, piece + 1,
                    true, true);
    if (piece + slots < pieces) {
      b.publish(kRead, piece + 1);
    }
  }
  return b.build();
}

namespace {

// slice_all_reduce, step by step. A chunk has one slice per rank; staging unit s of its buffer
// holds this rank's input of slice s, and, in this rank's own place, the reduced slice.
struct Slices {
  Builder b;
  std::uint32_t chunks;
  std::uint32_t buffers;

  std::uint32_t mark(std::uint32_t chunk) const { return chunk * b.locals(); }

  std::uint32_t unit(std::uint32_t chunk) const { return chunk % buffers * b.locals(); }

  void copy_slices(std::uint32_t chunk, std::uint32_t first, std::uint32_t last) {
    if (first != last) {
      b.copy(b.stage(unit(chunk) + first), Builder::input(mark(chunk) + first), mark(chunk) + first,
             mark(chunk) + last);
    }
  }

  void stage(std::uint32_t chunk) {
    if (chunk >= buffers) {
      b.await_all(kResultsRead, chunk - buffers + 1);
    }
    copy_slices(chunk, 0, b.local());
    copy_slices(chunk, b.local() + 1, b.locals());
    b.publish(chunk == 0 ? kAnnounceLine : kStaged, chunk + 1);
  }

  void reduce(std::uint32_t chunk) {
    b.await_all(chunk == 0 ? kAnnounceLine : kStaged, chunk + 1);
    const std::uint32_t own = mark(chunk) + b.local();
    const Place result = b.stage(unit(chunk) + b.local());
    b.reduce_locals(result, result, own, own + 1, true, true);
    b.publish(kReduced, chunk + 1);
    b.copy(Builder::output(own), result, own, own + 1);
  }

  void collect(std::uint32_t chunk) {
    b.await_all(kReduced, chunk + 1);
    for (std::uint32_t step = 1; step < b.locals(); ++step) {
      // Each rank starts with another owner, so that not all read the same one at once.
      const std::uint32_t owner = (b.local() + step) % b.locals();
      const std::uint32_t slice = mark(chunk) + owner;
      b.copy(Builder::output(slice), Builder::of_local(b.stage(unit(chunk) + owner), owner), slice,
             slice + 1);
    }
    if (chunk + buffers < chunks) {
      b.publish(kResultsRead, chunk + 1);
    }
  }
};

}  // namespace

Result<Schedule> slice_all_reduce(const Request& request) {
  const std::uint32_t chunks = request.tuning.pieces;
  const auto locals =
      static_cast<std::uint32_t>(request.topology.locals_of(static_cast<int>(request.rank)));
  Slices run = {start_schedule(request, OpKind::kAllReduce, "slice_all_reduce",
                               {false, chunks * locals, 0}, true),
                chunks, request.tuning.slots};
  run.b.in_order();
  // With three buffers results are read one chunk late: their owners had a chunk's time to reduce.
  const std::uint32_t delay = run.buffers >= 3 ? 1 : 0;
  run.stage(0);
  for (std::uint32_t chunk = 0; chunk < chunks + delay; ++chunk) {
    if (chunk + 1 < chunks) {
      run.stage(chunk + 1);
    }
    if (chunk < chunks) {
      run.reduce(chunk);
    }
    if (chunk >= delay) {
      run.collect(chunk - delay);
    }
  }
  return run.b.build();
}

}  // namespace isthmus
