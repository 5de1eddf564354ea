#include <algorithm>

#include "collectives/algorithms/mapped.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kStaged = 1;
constexpr std::uint8_t kRead = 2;
constexpr std::uint8_t kReduced = 2;
constexpr std::uint8_t kResultsRead = 3;

Builder start_to_root(const Request& request, OpKind op, std::string_view name,
                      const Partition& partition) {
  Builder b = start_schedule(request, op, name, partition, true);
  b.in_order();
  return b;
}

Partition whole(const Request& request) {
  return {false, request.tuning.pieces, 0};
}

// Every rank but the root shows its data; the root, having seen all, takes it.
// `own` is the mark of its data.
void show_to_root(Builder& b, Place place, std::uint32_t own, std::uint32_t root) {
  if (b.local() != root) {
    b.copy(place, Builder::input(0), own, own + 1);
  }
  b.publish(kAnnounceLine, 1);
  b.await_all(kAnnounceLine, 1);
}

// The same piece by piece: what all ranks but the root do. The announcement doubles as "piece 0 is
// staged", and the last thing that a rank does is to look at everyone's.
Result<Schedule> stage_for_root(Builder& b, const Request& request, std::uint32_t own) {
  const Tuning& tuning = request.tuning;
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    if (piece == tuning.slots) {
      // Before it waits for what only a root does: there may be none, or another one.
      b.await_all(kAnnounceLine, 1);
    }
    if (piece >= tuning.slots) {
      b.await(kRead, piece - tuning.slots + 1, request.root, 1);
    }
    b.copy(b.stage(tuning.slot(piece)), Builder::input(piece), own + piece, own + piece + 1);
    b.publish(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
  }
  if (tuning.pieces <= tuning.slots) {
    b.await_all(kAnnounceLine, 1);
  }
  return b.build();
}

// The root's side: `take` gets each piece when all have staged it.
template <typename Take>
Result<Schedule> take_from_all(Builder& b, const Tuning& tuning, const Take& take) {
  b.publish(kAnnounceLine, 1);
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    b.await_all(piece == 0 ? kAnnounceLine : kStaged, piece + 1);
    take(piece);
    if (piece + tuning.slots < tuning.pieces) {
      b.publish(kRead, piece + 1);
    }
  }
  return b.build();
}

Result<Schedule> reduce_shown(Builder& b, Place place, std::uint32_t root) {
  show_to_root(b, place, 0, root);
  if (b.local() == root) {
    b.reduce_locals(Builder::output(0), place, 0, 1, true, true);
  }
  return b.build();
}

// Piece `piece` of every block into the root's output.
void collect_blocks(Builder& b, Place place, std::uint32_t piece, std::uint32_t pieces) {
  for (std::uint32_t step = 0; step < b.locals(); ++step) {
    const std::uint32_t owner = (b.local() + step) % b.locals();
    const std::uint32_t mark = owner * pieces + piece;
    const Place src = step == 0 ? Builder::input(piece) : Builder::of_local(place, owner);
    b.copy(Builder::output(mark), src, mark, mark + 1);
  }
}

Result<Schedule> gather_shown(Builder& b, Place place, std::uint32_t root) {
  show_to_root(b, place, b.local(), root);
  if (b.local() == root) {
    collect_blocks(b, place, 0, 1);
  }
  return b.build();
}

// slice_reduce, step by step: as slice_all_reduce, but only the root reads the results.
struct RootSlices {
  Builder b;
  std::uint32_t chunks;
  std::uint32_t buffers;
  std::uint32_t root;

  std::uint32_t mark(std::uint32_t chunk) const { return chunk * b.locals(); }

  std::uint32_t unit(std::uint32_t chunk) const {
    return chunk % std::max(buffers, 1U) * b.locals();
  }

  void copy_slices(std::uint32_t chunk, std::uint32_t first, std::uint32_t last) {
    if (first != last) {
      b.copy(b.stage(unit(chunk) + first), Builder::input(mark(chunk) + first), mark(chunk) + first,
             mark(chunk) + last);
    }
  }

  void stage(std::uint32_t chunk) {
    if (chunk >= buffers && b.local() != root) {
      b.await(kResultsRead, chunk - buffers + 1, root, 1);
    }
    copy_slices(chunk, 0, b.local());
    copy_slices(chunk, b.local() + 1, b.locals());
    b.publish(chunk == 0 ? kAnnounceLine : kStaged, chunk + 1);
  }

  void reduce(std::uint32_t chunk) {
    b.await_all(chunk == 0 ? kAnnounceLine : kStaged, chunk + 1);
    const std::uint32_t own = mark(chunk) + b.local();
    const Place operands = b.stage(unit(chunk) + b.local());
    b.reduce_locals(b.local() == root ? Builder::output(own) : operands, operands, own, own + 1,
                    true, true);
    if (b.local() != root) {
      b.publish(kReduced, chunk + 1);
    }
  }

  // Only on the root.
  void collect(std::uint32_t chunk) {
    b.await_all(kReduced, chunk + 1);
    for (std::uint32_t step = 1; step < b.locals(); ++step) {
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

Result<Schedule> line_reduce(const Request& request) {
  Builder b = start_to_root(request, OpKind::kReduce, "line_reduce", whole(request));
  return reduce_shown(b, b.line(), request.root);
}

Result<Schedule> slot_reduce(const Request& request) {
  Builder b = start_to_root(request, OpKind::kReduce, "slot_reduce", whole(request));
  return reduce_shown(b, b.slot(0), request.root);
}

Result<Schedule> flat_reduce(const Request& request) {
  Builder b = start_to_root(request, OpKind::kReduce, "flat_reduce", whole(request));
  if (b.local() != request.root) {
    return stage_for_root(b, request, 0);
  }
  return take_from_all(b, request.tuning, [&](std::uint32_t piece) {
    b.reduce_locals(Builder::output(piece), b.stage(request.tuning.slot(piece)), piece, piece + 1,
                    true, true);
  });
}

Result<Schedule> slice_reduce(const Request& request) {
  const std::uint32_t chunks = request.tuning.pieces;
  const auto locals =
      static_cast<std::uint32_t>(request.topology.locals_of(static_cast<int>(request.rank)));
  RootSlices run = {
      start_to_root(request, OpKind::kReduce, "slice_reduce", {false, chunks * locals, 0}), chunks,
      request.tuning.slots, request.root};
  // With three buffers the root reads results one chunk late: their owners had time to reduce.
  const std::uint32_t delay = run.buffers >= 3 ? 1 : 0;
  const bool root = run.b.local() == request.root;
  run.stage(0);
  for (std::uint32_t chunk = 0; chunk < chunks + delay; ++chunk) {
    if (chunk + 1 < chunks) {
      run.stage(chunk + 1);
    }
    if (chunk < chunks) {
      run.reduce(chunk);
    }
    if (root && chunk >= delay) {
      run.collect(chunk - delay);
    }
  }
  return run.b.build();
}

Result<Schedule> line_gather(const Request& request) {
  Builder b = start_to_root(request, OpKind::kGather, "line_gather", ranked_partition(request));
  return gather_shown(b, b.line(), request.root);
}

Result<Schedule> slot_gather(const Request& request) {
  Builder b = start_to_root(request, OpKind::kGather, "slot_gather", ranked_partition(request));
  return gather_shown(b, b.slot(0), request.root);
}

Result<Schedule> staged_gather(const Request& request) {
  Builder b = start_to_root(request, OpKind::kGather, "staged_gather", ranked_partition(request));
  if (b.local() != request.root) {
    return stage_for_root(b, request, b.local() * request.tuning.pieces);
  }
  return take_from_all(b, request.tuning, [&](std::uint32_t piece) {
    collect_blocks(b, b.stage(request.tuning.slot(piece)), piece, request.tuning.pieces);
  });
}

}  // namespace isthmus
