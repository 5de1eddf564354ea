#pragma once

#include <cstdint>
#include <vector>

#include "collectives/algorithms/two_level.h"

namespace isthmus {

// Nodes that combine their sums with each other, ascending, and which of them this one is. Plain
// value.
struct Team {
  std::uint32_t first = 0;  // they follow it, or
  std::uint32_t count = 1;
  std::uint32_t own = 0;
  std::vector<std::uint32_t> listed;

  std::uint32_t node(std::uint32_t member) const {
    return listed.empty() ? first + member : listed[member];
  }

  // The member `steps` after this node, in a circle.
  std::uint32_t after(std::uint32_t steps) const { return (own + steps) % count; }

  static Team of_own(const Nodes& nodes) { return {nodes.own(), 1, 0, {}}; }

  static Team of_all(const Nodes& nodes) { return {0, nodes.count(), nodes.own(), {}}; }

  static Team of_rack(const Nodes& nodes) {
    const std::uint32_t rack = nodes.own_rack();
    return {nodes.rack_begin(rack), nodes.nodes_of_rack(rack), nodes.place(), {}};
  }

  // One node of each rack, by its place there.
  template <typename PlaceIn>
  static Team across_racks(const Nodes& nodes, const PlaceIn& place_in) {
    Team team = {0, nodes.racks(), nodes.own_rack(), {}};
    for (std::uint32_t rack = 0; rack < nodes.racks(); ++rack) {
      team.listed.push_back(nodes.rack_begin(rack) + place_in(rack));
    }
    return team;
  }
};

}  // namespace isthmus
