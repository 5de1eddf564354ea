#include "topology/topology.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>

namespace isthmus {

namespace {

Error invalid(std::string message) {
  return {Code::kInvalidArgument, 0, -1, std::move(message)};
}

}  // namespace

Result<Topology> Topology::make(std::span<const int> node_of, const std::vector<bool>& mapped,
                                std::span<const int> rack_of) {
  if (node_of.empty() || node_of.size() > static_cast<std::size_t>(kRanksMax)) {
    return invalid(fmt::format("A topology of {} ranks was asked for; 1 to {} are possible.",
                               node_of.size(), kRanksMax));
  }
  Topology result;
  result.node_of_.reserve(node_of.size());
  result.local_of_.reserve(node_of.size());
  std::unordered_map<int, int> dense;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    const int node = dense.try_emplace(node_of[rank], static_cast<int>(dense.size())).first->second;
    if (static_cast<std::size_t>(node) == result.members_.size()) {
      result.members_.emplace_back();
    }
    std::vector<int>& members = result.members_[static_cast<std::size_t>(node)];
    result.node_of_.push_back(node);
    result.local_of_.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(rank));
  }
  const std::size_t nodes = result.members_.size();
  if (!mapped.empty() && mapped.size() != nodes) {
    return invalid(fmt::format("The topology has {} nodes, but {} say whether they share memory.",
                               nodes, mapped.size()));
  }
  result.mapped_.assign(nodes, true);
  result.locals_min_ = static_cast<int>(result.members_[0].size());
  for (std::size_t node = 0; node < nodes; ++node) {
    const int locals = static_cast<int>(result.members_[node].size());
    result.locals_min_ = std::min(result.locals_min_, locals);
    result.locals_max_ = std::max(result.locals_max_, locals);
    if (!mapped.empty() && locals > 1) {
      result.mapped_[node] = mapped[node];
    }
    result.mapped_all_ = result.mapped_all_ && result.mapped_[node];
  }
  ISTHMUS_TRY(result.form_racks(rack_of));
  return result;
}

// Numbers the nodes anew, rack by rack.
Status Topology::form_racks(std::span<const int> rack_of) {
  if (!rack_of.empty() && rack_of.size() != node_of_.size()) {
    return invalid(fmt::format("The topology has {} ranks, but {} say which rack they are in.",
                               node_of_.size(), rack_of.size()));
  }
  std::unordered_map<int, std::size_t> dense;
  std::vector<std::vector<std::size_t>> grouped;
  for (std::size_t node = 0; node < members_.size(); ++node) {
    const auto rack_of_rank = [&](int rank) {
      return rack_of.empty() ? 0 : rack_of[static_cast<std::size_t>(rank)];
    };
    const int first = members_[node].front();
    const auto stranger = std::find_if(members_[node].begin(), members_[node].end(), [&](int rank) {
      return rack_of_rank(rank) != rack_of_rank(first);
    });
    if (stranger != members_[node].end()) {
      return invalid(
          fmt::format("Ranks {} and {} share a node, but not a rack.", first, *stranger));
    }
    const std::size_t rack = dense.try_emplace(rack_of_rank(first), grouped.size()).first->second;
    grouped.resize(std::max(grouped.size(), rack + 1));
    grouped[rack].push_back(node);
  }
  const std::vector<std::vector<int>> members = std::move(members_);
  const std::vector<bool> mapped = std::move(mapped_);
  members_.clear();
  mapped_.clear();
  rack_nodes_min_ = static_cast<int>(members.size());
  for (const std::vector<std::size_t>& nodes : grouped) {
    const int count = static_cast<int>(nodes.size());
    rack_nodes_min_ = std::min(rack_nodes_min_, count);
    rack_nodes_max_ = std::max(rack_nodes_max_, count);
    for (const std::size_t node : nodes) {
      for (const int rank : members[node]) {
        node_of_[static_cast<std::size_t>(rank)] = static_cast<int>(members_.size());
      }
      members_.push_back(members[node]);
      mapped_.push_back(mapped[node]);
      rack_of_node_.push_back(racks());
    }
    rack_begin_.push_back(static_cast<int>(members_.size()));
  }
  return {};
}

Topology Topology::grid(int nodes, int locals, int nodes_per_rack) {
  ISTHMUS_CHECK(nodes > 0 && locals > 0 && nodes <= kRanksMax / locals, "a grid has a size");
  std::vector<int> node_of(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(locals));
  std::vector<int> rack_of(node_of.size(), 0);
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    node_of[rank] = static_cast<int>(rank) / locals;
    rack_of[rank] = nodes_per_rack > 0 ? node_of[rank] / nodes_per_rack : 0;
  }
  return make(node_of, {}, rack_of).value();
}

Result<Topology> Topology::restricted_to(std::span<const int> ranks) const {
  std::vector<int> nodes_of_group;
  std::vector<int> racks_of_group;
  std::vector<bool> seen(node_of_.size(), false);
  nodes_of_group.reserve(ranks.size());
  for (const int rank : ranks) {
    if (rank < 0 || rank >= this->ranks()) {
      return invalid(fmt::format("A group names rank {}; the topology has ranks 0 to {}.", rank,
                                 this->ranks() - 1));
    }
    if (seen[static_cast<std::size_t>(rank)]) {
      return invalid(fmt::format("A group names rank {} twice.", rank));
    }
    seen[static_cast<std::size_t>(rank)] = true;
    nodes_of_group.push_back(node_of(rank));
    racks_of_group.push_back(rack_of_node(node_of(rank)));
  }
  std::vector<bool> mapped_of_group;
  std::vector<bool> counted(static_cast<std::size_t>(nodes()), false);
  for (const int node : nodes_of_group) {
    if (!counted[static_cast<std::size_t>(node)]) {
      counted[static_cast<std::size_t>(node)] = true;
      mapped_of_group.push_back(mapped(node));
    }
  }
  ISTHMUS_ASSIGN(Topology result, make(nodes_of_group, mapped_of_group, racks_of_group));
  result.node_costs_ = node_costs_;
  result.between_ = between_;
  result.across_ = across_;
  result.set_pulls(pulls_ && result.one_mapped_node());
  return result;
}

void Topology::set_links(const LinkClass& inside, const LinkClass& between,
                         double gamma_us_per_mib) {
  node_costs_ = NodeCosts();
  node_costs_.flag_us = inside.alpha_us;
  node_costs_.look_us = inside.alpha_us;
  node_costs_.flag_rank_us = 0.0;
  node_costs_.copy = RateCurve::flat(inside.beta_us_per_mib);
  node_costs_.read = node_costs_.copy;
  node_costs_.combine = RateCurve::flat(0.0);
  node_costs_.reduce = RateCurve::flat(gamma_us_per_mib);
  between_ = between;
}

}  // namespace isthmus
