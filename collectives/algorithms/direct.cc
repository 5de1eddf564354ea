#include <bit>

#include "collectives/algorithms/message.h"

namespace isthmus {

namespace {

std::uint32_t ranks_of(const Request& request) {
  return static_cast<std::uint32_t>(request.topology.ranks());
}

// Sends this rank's operand of every peer's block to its owner, receives the peers' operands of its
// own block and combines all of them in rank order. Rank r owns block r modulo `blocks`. A block
// has `pieces` marks; scratch holds `slots` pieces of P operands.
void scatter_piece(Builder& b, const Tuning& tuning, std::uint32_t blocks, std::uint32_t piece,
                   Place dst) {
  const std::uint32_t base = tuning.slot(piece) * b.ranks();
  const std::uint32_t own = b.rank() % blocks * tuning.pieces + piece;
  for (std::uint32_t step = 1; step < b.ranks(); ++step) {
    const std::uint32_t to = (b.rank() + step) % b.ranks();
    const std::uint32_t from = (b.rank() + b.ranks() - step) % b.ranks();
    const std::uint32_t theirs = to % blocks * tuning.pieces + piece;
    b.send(to, Builder::input(theirs), theirs, theirs + 1);
    b.recv(from, Builder::scratch(base + from), own, own + 1);
  }
  b.reduce_units(dst, Builder::scratch(base), b.ranks(), b.rank(), own, own + 1, true);
}

}  // namespace

Result<Schedule> gather_all_reduce(const Request& request) {
  Builder b = start_schedule(request, OpKind::kAllReduce, "gather_all_reduce", {}, false);
  for (std::uint32_t step = 1; step < b.ranks(); ++step) {
    const std::uint32_t from = (b.rank() + b.ranks() - step) % b.ranks();
    b.send((b.rank() + step) % b.ranks(), Builder::input(0), 0, 1);
    b.recv(from, Builder::scratch(from), 0, 1);
  }
  b.reduce_units(Builder::output(0), Builder::scratch(0), b.ranks(), b.rank(), 0, 1, true);
  return b.build();
}

Result<Schedule> direct_all_reduce(const Request& request) {
  const Tuning& tuning = request.tuning;
  Builder b = start_schedule(request, OpKind::kAllReduce, "direct_all_reduce",
                             {false, ranks_of(request) * tuning.pieces, 0}, false);
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    const std::uint32_t own = b.rank() * tuning.pieces + piece;
    scatter_piece(b, tuning, b.ranks(), piece, Builder::output(own));
    for (std::uint32_t step = 1; step < b.ranks(); ++step) {
      const std::uint32_t to = (b.rank() + step) % b.ranks();
      const std::uint32_t from = (b.rank() + b.ranks() - step) % b.ranks();
      const std::uint32_t theirs = from * tuning.pieces + piece;
      b.send(to, Builder::output(own), own, own + 1);
      b.recv(from, Builder::output(theirs), theirs, theirs + 1);
    }
  }
  return b.build();
}

Result<Schedule> direct_reduce_scatter(const Request& request) {
  const Tuning& tuning = request.tuning;
  Builder b = start_schedule(request, OpKind::kReduceScatter, "direct_reduce_scatter",
                             ranked_partition(request), false);
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    scatter_piece(b, tuning, b.ranks(), piece, Builder::output(piece));
  }
  return b.build();
}

Result<Schedule> direct_reduce_shards(const Request& request) {
  const Tuning& tuning = request.tuning;
  const Partition partition = shards_partition(request);
  Builder b =
      start_schedule(request, OpKind::kReduceShards, "direct_reduce_shards", partition, false);
  for (std::uint32_t piece = 0; piece < tuning.pieces; ++piece) {
    scatter_piece(b, tuning, partition.blocks, piece, Builder::output(piece));
  }
  return b.build();
}

Result<Schedule> direct_all_gather(const Request& request) {
  Builder b = start_schedule(request, OpKind::kAllGather, "direct_all_gather",
                             {true, ranks_of(request), 0}, false);
  for (std::uint32_t step = 1; step < b.ranks(); ++step) {
    const std::uint32_t from = (b.rank() + b.ranks() - step) % b.ranks();
    b.send((b.rank() + step) % b.ranks(), Builder::input(0), b.rank(), b.rank() + 1);
    b.recv(from, Builder::scratch(from), from, from + 1);
  }
  b.gate_output();
  for (std::uint32_t rank = 0; rank < b.ranks(); ++rank) {
    b.copy(Builder::output(rank), rank == b.rank() ? Builder::input(0) : Builder::scratch(rank),
           rank, rank + 1);
  }
  return b.build();
}

}  // namespace isthmus
