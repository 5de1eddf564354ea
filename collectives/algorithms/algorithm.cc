#include "collectives/algorithms/algorithm.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace isthmus {

namespace {

constexpr std::size_t kClassZeroBytes = 48;  // the payload of an announcement line
constexpr std::size_t kClassOneBytes = 64;

}  // namespace

std::uint32_t size_class(std::size_t bytes) {
  if (bytes <= kClassZeroBytes) {
    return 0;
  }
  const std::size_t lines = (bytes + kClassOneBytes - 1) / kClassOneBytes;
  return 1 + static_cast<std::uint32_t>(std::bit_width(lines - 1));
}

std::size_t size_class_bytes(std::uint32_t size_class) {
  return size_class == 0 ? kClassZeroBytes : kClassOneBytes << (size_class - 1);
}

std::uint32_t pieces_of(std::size_t bytes, std::size_t piece_bytes, std::uint32_t most) {
  const std::size_t whole = size_class_bytes(size_class(bytes));
  const std::size_t pieces = std::bit_floor(std::max<std::size_t>(whole / piece_bytes, 1));
  return static_cast<std::uint32_t>(std::min<std::size_t>(pieces, std::bit_floor(most)));
}

Builder start_schedule(const Request& request, OpKind op, std::string_view name,
                       const Partition& partition, bool mapped) {
  const int rank = static_cast<int>(request.rank);
  Builder::Shape shape;
  shape.op = op;
  shape.rank = request.rank;
  shape.ranks = static_cast<std::uint32_t>(request.topology.ranks());
  if (mapped) {
    shape.local = static_cast<std::uint32_t>(request.topology.local_of(rank));
    shape.locals = static_cast<std::uint32_t>(request.topology.locals_of(rank));
  }
  shape.root = request.root;
  shape.algorithm = name;
  shape.partition = partition;
  return Builder(shape);
}

Partition whole_partition(const Request& request) {
  return {false, request.tuning.pieces, 0};
}

Partition ranked_partition(const Request& request) {
  const auto ranks = static_cast<std::uint32_t>(request.topology.ranks());
  const auto pieces_log2 = static_cast<std::uint32_t>(std::bit_width(request.tuning.pieces)) - 1;
  return {true, ranks, pieces_log2};
}

std::uint32_t shards_of(const Topology& topology, std::uint32_t asked) {
  return asked != 0 ? asked
                    : static_cast<std::uint32_t>(std::gcd(topology.ranks(), topology.locals_min()));
}

Partition shards_partition(const Request& request) {
  Partition partition = ranked_partition(request);
  partition.blocks = shards_of(request.topology, request.shards);
  return partition;
}

const Algorithm* find_algorithm(OpKind op, std::string_view name) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.op == op && algorithm.name == name) {
      return &algorithm;
    }
  }
  return nullptr;
}

}  // namespace isthmus
