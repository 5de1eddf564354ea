#include "collectives/algorithms/exposed.h"

#include <cstdint>
#include <string_view>

#include "collectives/algorithms/mapped_pieces.h"

namespace isthmus {

namespace {

constexpr std::uint8_t kDone = 1;  // line: this rank has read all that it needs of others

Builder start_exposed(const Request& request, OpKind op, std::string_view name, Exposure exposure,
                      const Partition& partition) {
  Builder b = start_mapped(request, op, name, partition);
  b.expose(exposure);
  announce(b);
  return b;
}

// Each rank has a slice of the data, of `pieces` pieces.
Builder start_all_reduce(const Request& request, std::string_view name, Exposure exposure) {
  const auto ranks = static_cast<std::uint32_t>(request.topology.ranks());
  return start_exposed(request, OpKind::kAllReduce, name, exposure,
                       {false, request.tuning.pieces * ranks, 0});
}

// Lets go of the peers' buffers, and waits until they let go of this rank's.
Result<Schedule> part(Builder& b) {
  b.publish(kDone, 1);
  b.await_all(kDone, 1);
  return b.build();
}

// Calls step(owner) for every other rank, the next one first: not all read the same one at once.
template <typename Visit>
void for_others(const Builder& b, const Visit& visit) {
  for (std::uint32_t step = 1; step < b.locals(); ++step) {
    visit((b.local() + step) % b.locals());
  }
}

// output = the reduction of everyone's marks [mark, mark + 1) of the input, which is `own` here.
void reduce_all(Builder& b, Exposure exposure, Place output, std::uint32_t mark) {
  if (exposure == Exposure::kMapped) {
    b.reduce_locals(output, Builder::peer_input(0, mark), mark, mark + 1, true, true);
    return;
  }
  for_others(b, [&](std::uint32_t owner) {
    b.copy(Builder::scratch(owner), Builder::peer_input(owner, mark), mark, mark + 1);
  });
  b.reduce_units(output, Builder::scratch(0), b.locals(), b.local(), mark, mark + 1, true);
}

Result<Schedule> all_gather(const Request& request, std::string_view name, Exposure exposure) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_exposed(request, OpKind::kAllGather, name, exposure, ranked_partition(request));
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    gather_blocks(b, Builder::peer_input(0, piece), piece, piece, pieces);
  }
  return part(b);
}

Result<Schedule> reduce_scatter(const Request& request, std::string_view name, Exposure exposure) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b =
      start_exposed(request, OpKind::kReduceScatter, name, exposure, ranked_partition(request));
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    reduce_all(b, exposure, Builder::output(piece), b.local() * pieces + piece);
  }
  return part(b);
}

Result<Schedule> all_to_all(const Request& request, std::string_view name, Exposure exposure) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_exposed(request, OpKind::kAllToAll, name, exposure, ranked_partition(request));
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    const std::uint32_t own = b.local() * pieces + piece;
    gather_blocks(b, Builder::peer_input(0, own), own, piece, pieces);
  }
  return part(b);
}

// A rank whose buffer others read, and which reads none: it waits for ranks [first, first + count).
Result<Schedule> be_read(Builder& b, std::uint32_t first, std::uint32_t count) {
  b.await(kDone, 1, first, count);
  return b.build();
}

Result<Schedule> have_read(Builder& b) {
  b.publish(kDone, 1);
  return b.build();
}

}  // namespace

// Everyone reduces one slice, into everyone's output: each element is read once and written once a
// rank.
Result<Schedule> load_all_reduce(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_all_reduce(request, "load_all_reduce", Exposure::kMapped);
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    const std::uint32_t own = b.local() * pieces + piece;
    b.reduce_locals(Builder::every_output(own), Builder::peer_input(0, own), own, own + 1, true,
                    true);
  }
  return part(b);
}

Result<Schedule> load_all_gather(const Request& request) {
  return all_gather(request, "load_all_gather", Exposure::kMapped);
}

Result<Schedule> load_reduce_scatter(const Request& request) {
  return reduce_scatter(request, "load_reduce_scatter", Exposure::kMapped);
}

Result<Schedule> load_all_to_all(const Request& request) {
  return all_to_all(request, "load_all_to_all", Exposure::kMapped);
}

// Everyone reduces one slice, then copies the others' results: not chunk by chunk, for what a peer
// has just written lies in its own cache, from where it comes slowly.
Result<Schedule> pull_all_reduce(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_all_reduce(request, "pull_all_reduce", Exposure::kPulled);
  constexpr std::uint8_t kReducedLine = 2;
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    const std::uint32_t own = b.local() * pieces + piece;
    reduce_all(b, Exposure::kPulled, Builder::output(own), own);
  }
  b.publish(kReducedLine, 1);
  b.await_all(kReducedLine, 1);
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    for_others(b, [&](std::uint32_t owner) {
      const std::uint32_t mark = owner * pieces + piece;
      b.copy(Builder::output(mark), Builder::peer_output(owner, mark), mark, mark + 1);
    });
  }
  return part(b);
}

Result<Schedule> pull_all_gather(const Request& request) {
  return all_gather(request, "pull_all_gather", Exposure::kPulled);
}

Result<Schedule> pull_reduce_scatter(const Request& request) {
  return reduce_scatter(request, "pull_reduce_scatter", Exposure::kPulled);
}

Result<Schedule> pull_all_to_all(const Request& request) {
  return all_to_all(request, "pull_all_to_all", Exposure::kPulled);
}

Result<Schedule> pull_broadcast(const Request& request) {
  Builder b = start_exposed(request, OpKind::kBroadcast, "pull_broadcast", Exposure::kPulled,
                            whole_partition(request));
  if (b.local() == request.root) {
    return be_read(b, 0, b.locals());
  }
  for (std::uint32_t piece = 0; piece < request.tuning.pieces; ++piece) {
    b.copy(Builder::output(piece), Builder::peer_output(request.root, piece), piece, piece + 1);
  }
  return have_read(b);
}

Result<Schedule> pull_gather(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_exposed(request, OpKind::kGather, "pull_gather", Exposure::kPulled,
                            ranked_partition(request));
  if (b.local() != request.root) {
    return be_read(b, request.root, 1);
  }
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    gather_blocks(b, Builder::peer_input(0, piece), piece, piece, pieces);
  }
  return have_read(b);
}

Result<Schedule> pull_scatter(const Request& request) {
  const std::uint32_t pieces = request.tuning.pieces;
  Builder b = start_exposed(request, OpKind::kScatter, "pull_scatter", Exposure::kPulled,
                            ranked_partition(request));
  for (std::uint32_t piece = 0; piece < pieces; ++piece) {
    const std::uint32_t own = b.local() * pieces + piece;
    const bool root = b.local() == request.root;
    b.copy(Builder::output(piece),
           root ? Builder::input(own) : Builder::peer_input(request.root, own), own, own + 1);
  }
  return b.local() == request.root ? be_read(b, 0, b.locals()) : have_read(b);
}

}  // namespace isthmus
