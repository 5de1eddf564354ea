#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/algorithms/algorithm.h"

namespace isthmus {

// The schedules of all ranks; empty, with a test failure, when one cannot be built.
inline std::vector<Schedule> build_all(const Algorithm& algorithm, const Topology& topology,
                                       std::uint32_t root, const Tuning& tuning) {
  std::vector<Schedule> result;
  result.reserve(static_cast<std::size_t>(topology.ranks()));
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    Result<Schedule> schedule =
        algorithm.build({topology, static_cast<std::uint32_t>(rank), root, tuning});
    if (!schedule.ok()) {
      ADD_FAILURE() << schedule.error().message;
      return {};
    }
    result.push_back(std::move(schedule).value());
  }
  return result;
}

// Whether the algorithm fits, where everything that depends on the caller's memory and on the
// system is as it wants it.
inline bool fits_best(const Algorithm& algorithm, Topology topology, std::size_t bytes) {
  topology.set_pulls(topology.one_mapped_node());
  return algorithm.applicable(topology, {.bytes = bytes, .mapped = true});
}

inline bool any(const Algorithm&) {
  return true;
}

// Algorithms for which the placement of ranks makes no difference are proved on one node.
inline bool sees_nodes(const Algorithm& algorithm) {
  return !fits_best(algorithm, Topology::grid(1, 2), 0);
}

// Whether the algorithm's schedules depend on the size class at all.
inline bool has_pieces(const Algorithm& algorithm, const Topology& topology) {
  return algorithm.tune(topology, {std::size_t{1} << 30, false}) != Tuning{};
}

// Stand for a small, a middle and a large size: one piece, all pieces staged at once, and pieces
// that use staging again. Larger sizes repeat the last one's pattern. Between nodes: rounds that
// double, that halve, and both.
inline std::vector<Tuning> three_tunings() {
  return {{1, 1, 0, 0}, {2, 2, 1, 64}, {4, 2, 1, 1}};
}

inline std::string where(const Algorithm& algorithm, const Topology& topology, std::uint32_t root,
                         const Tuning& tuning) {
  return std::string(algorithm.name) + " on " + std::to_string(topology.nodes()) + " nodes of " +
         std::to_string(topology.locals_min()) + " to " + std::to_string(topology.locals_max()) +
         " ranks, root " + std::to_string(root) + ", " + std::to_string(tuning.pieces) + " pieces";
}

}  // namespace isthmus
