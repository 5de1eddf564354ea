#include "topology/topology_file.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "topology/json_reader.h"

namespace isthmus {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormatKey = "isthmus_topology";

struct CurveKey {
  std::string_view key;
  RateCurve NodeCosts::*curve;
};

constexpr std::array<CurveKey, 5> kCurves = {{{"copy", &NodeCosts::copy},
                                              {"read", &NodeCosts::read},
                                              {"combine", &NodeCosts::combine},
                                              {"reduce", &NodeCosts::reduce},
                                              {"pull", &NodeCosts::pull}}};

struct TimeKey {
  std::string_view key;
  double NodeCosts::*us;
};

constexpr std::array<TimeKey, 4> kTimes = {{{"flag_us", &NodeCosts::flag_us},
                                            {"flag_rank_us", &NodeCosts::flag_rank_us},
                                            {"switch_us", &NodeCosts::switch_us},
                                            {"look_us", &NodeCosts::look_us}}};

Error invalid(std::string message) {
  return {Code::kInvalidArgument, 0, -1, std::move(message)};
}

Json node_json(const NodeShape& node) {
  Json out;
  if (!node.name.empty()) {
    out["name"] = node.name;
  }
  out["ranks"] = node.which.empty() ? Json(node.ranks) : Json(node.which);
  out["mapped"] = node.mapped;
  if (!node.rack.empty()) {
    out["rack"] = node.rack;
  }
  if (!node.rails.empty()) {
    out["rails"] = Json::array();
    for (const Rail& rail : node.rails) {
      out["rails"].push_back({{"name", rail.name}, {"gbit_per_s", rail.gbit_per_s}});
    }
  }
  return out;
}

Json inside_json(const NodeCosts& costs) {
  Json out;
  out["measured"] = costs.measured;
  out["ranks_per_processor"] = costs.sharing;
  for (const auto& [key, us] : kTimes) {
    out[std::string(key)] = costs.*us;
  }
  for (const auto& [key, curve] : kCurves) {
    out[std::string(key)] = {{"bytes", (costs.*curve).bytes},
                             {"us_per_mib", (costs.*curve).us_per_mib}};
  }
  return out;
}

NodeShape node_from(const JsonReader& json) {
  json.only({"name", "ranks", "mapped", "rails", "rack"});
  NodeShape out;
  out.name = json.text("name", "");
  const JsonReader ranks = json.at("ranks");
  if (ranks.is_list()) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      out.which.push_back(
          static_cast<int>(ranks.at(i).whole(0, Topology::kRanksMax - 1, "a rank")));
    }
    if (out.which.empty()) {
      ranks.refuse("at least one rank");
    }
    out.ranks = static_cast<int>(out.which.size());
  } else {
    out.ranks = static_cast<int>(ranks.whole(1, Topology::kRanksMax, "a number of ranks"));
  }
  out.mapped = json.flag("mapped", true);
  out.rack = json.text("rack", "");
  if (json.has("rails")) {
    const JsonReader rails = json.at("rails");
    for (std::size_t i = 0; i < rails.list().size(); ++i) {
      const JsonReader rail = rails.at(i);
      rail.only({"name", "gbit_per_s"});
      const double rate = rail.at("gbit_per_s").number();
      if (rate <= 0.0) {
        rail.at("gbit_per_s").refuse("a rate above 0");
      }
      out.rails.push_back({rail.text("name", ""), rate});
    }
  }
  return out;
}

RateCurve curve_from(const JsonReader& json) {
  json.only({"bytes", "us_per_mib"});
  RateCurve curve;
  const auto take = [&](const char* key, std::array<double, RateCurve::kPoints>* into) {
    const JsonReader row = json.at(key);
    if (row.list().size() != into->size()) {
      row.refuse(fmt::format("{} numbers", into->size()));
    }
    for (std::size_t i = 0; i < into->size(); ++i) {
      (*into)[i] = row.at(i).number();
    }
  };
  take("bytes", &curve.bytes);
  take("us_per_mib", &curve.us_per_mib);
  if (!curve.sane()) {
    json.refuse("ascending bytes");
  }
  return curve;
}

Json link_json(const LinkClass& link) {
  return {{"alpha_us", link.alpha_us}, {"beta_us_per_mib", link.beta_us_per_mib}};
}

LinkClass link_from(const JsonReader& json) {
  return {json.at("alpha_us").number(), json.at("beta_us_per_mib").number()};
}

// Everything that NodeCosts has, or the three numbers of the simplest model.
NodeCosts inside_from(const JsonReader& json) {
  if (json.has("alpha_us")) {
    json.only({"alpha_us", "beta_us_per_mib", "gamma_us_per_mib"});
    Topology simple;
    simple.set_links(link_from(json), {}, json.at("gamma_us_per_mib").number());
    return simple.node_costs();
  }
  json.only({"measured", "ranks_per_processor", "flag_us", "flag_rank_us", "switch_us", "look_us",
             "copy", "read", "combine", "reduce", "pull"});
  NodeCosts costs;
  costs.measured = json.flag("measured", false);
  if (json.has("ranks_per_processor")) {
    costs.sharing = json.at("ranks_per_processor").number();
    if (costs.sharing < 1.0) {
      json.at("ranks_per_processor").refuse("at least 1");
    }
  }
  for (const auto& [key, us] : kTimes) {
    if (json.has(key)) {
      costs.*us = json.at(key).number();
    }
  }
  for (const auto& [key, curve] : kCurves) {
    if (json.has(key)) {
      costs.*curve = curve_from(json.at(key));
    }
  }
  return costs;
}

TopologyFile file_from(const JsonReader& json) {
  json.only({kFormatKey, "node", "count", "nodes_per_rack", "nodes", "pulls", "inside", "between",
             "across"});
  TopologyFile out;
  json.at(kFormatKey).whole(TopologyFile::kFormat, TopologyFile::kFormat, "this version's format");
  if (json.has("node") == json.has("nodes")) {
    json.refuse("either \"nodes\", a list, or \"node\" and its \"count\"");
  }
  if (json.has("node")) {
    out.nodes.push_back(node_from(json.at("node")));
    if (!out.nodes[0].which.empty()) {
      json.at("node").at("ranks").refuse("a number of ranks, as of every node that is counted");
    }
    out.count = static_cast<int>(
        json.at("count").whole(1, Topology::kRanksMax / out.nodes[0].ranks, "a number of nodes"));
    if (!out.nodes[0].rack.empty()) {
      json.at("node").at("rack").refuse(
          "\"nodes_per_rack\" in its place, of nodes that are counted");
    }
    if (json.has("nodes_per_rack")) {
      out.nodes_per_rack = static_cast<int>(
          json.at("nodes_per_rack").whole(1, Topology::kRanksMax, "a number of nodes"));
    }
  } else {
    const JsonReader nodes = json.at("nodes");
    if (json.has("count")) {
      json.at("count").refuse("\"count\" beside \"node\" only");
    }
    if (json.has("nodes_per_rack")) {
      json.at("nodes_per_rack").refuse("\"rack\" of each node that is listed");
    }
    for (std::size_t i = 0; i < nodes.list().size(); ++i) {
      out.nodes.push_back(node_from(nodes.at(i)));
    }
    if (out.nodes.empty()) {
      nodes.refuse("at least one node");
    }
  }
  out.pulls = json.flag("pulls", false);
  if (json.has("inside")) {
    out.inside = inside_from(json.at("inside"));
  }
  if (json.has("between")) {
    json.at("between").only({"alpha_us", "beta_us_per_mib"});
    out.between = link_from(json.at("between"));
  }
  out.across = out.between;
  if (json.has("across")) {
    json.at("across").only({"alpha_us", "beta_us_per_mib"});
    out.across = link_from(json.at("across"));
  }
  return out;
}

// The node of each rank; -1 where none has it.
Result<std::vector<int>> placement_of(const std::vector<NodeShape>& nodes) {
  std::int64_t ranks = 0;
  for (const NodeShape& node : nodes) {
    ranks += node.ranks;
  }
  if (ranks > Topology::kRanksMax) {
    return invalid(
        fmt::format("The topology has {} ranks, expected at most {}.", ranks, Topology::kRanksMax));
  }
  std::vector<int> node_of(static_cast<std::size_t>(ranks), -1);
  int next = 0;
  for (std::size_t at = 0; at < nodes.size(); ++at) {
    std::vector<int> own = nodes[at].which;
    if (own.empty()) {
      own.resize(static_cast<std::size_t>(nodes[at].ranks));
      std::iota(own.begin(), own.end(), next);
    }
    for (const int rank : own) {
      if (rank >= ranks || node_of[static_cast<std::size_t>(rank)] >= 0) {
        return invalid(
            fmt::format("nodes[{}].ranks has rank {}: expected each of 0 to {} on one node.", at,
                        rank, ranks - 1));
      }
      node_of[static_cast<std::size_t>(rank)] = static_cast<int>(at);
    }
    next = *std::max_element(own.begin(), own.end()) + 1;
  }
  return node_of;
}

}  // namespace

TopologyFile TopologyFile::describe(const Topology& topology) {
  TopologyFile out;
  int next = 0;
  for (int node = 0; node < topology.nodes(); ++node) {
    const std::span<const int> members = topology.members(node);
    NodeShape shape;
    shape.ranks = topology.locals(node);
    shape.mapped = topology.mapped(node);
    if (members.front() != next || members.back() - members.front() + 1 != shape.ranks) {
      shape.which.assign(members.begin(), members.end());
    }
    next = members.back() + 1;
    if (topology.racks() > 1) {
      shape.rack = fmt::format("{}", topology.rack_of_node(node));
    }
    out.nodes.push_back(std::move(shape));
  }
  out.pulls = topology.pulls();
  out.inside = topology.node_costs();
  out.between = topology.between();
  out.across = topology.across();
  return out;
}

// The rack of each rank.
std::vector<int> TopologyFile::racks_of(const std::vector<int>& node_of) const {
  std::vector<int> racks;
  std::map<std::string_view, int> named;
  if (count > 0) {
    for (const int node : node_of) {
      racks.push_back(nodes_per_rack > 0 ? node / nodes_per_rack : 0);
    }
    return racks;
  }
  for (const NodeShape& node : nodes) {
    named.try_emplace(node.rack, static_cast<int>(named.size()));
  }
  for (const int node : node_of) {
    racks.push_back(named.at(nodes[static_cast<std::size_t>(node)].rack));
  }
  return racks;
}

Result<Topology> TopologyFile::topology(int ranks) const {
  if (nodes.empty() || ranks < 0 || ranks > Topology::kRanksMax) {
    return invalid(
        fmt::format("{} ranks were asked for of a topology of {} nodes.", ranks, nodes.size()));
  }
  std::vector<int> node_of;
  if (count > 0) {
    const int each = nodes[0].ranks;
    const int all = ranks > 0 ? ranks : each * count;
    if (all % each != 0) {
      return invalid(
          fmt::format("{} ranks were asked for, but the topology has nodes of {}: "
                      "expected a multiple.",
                      all, each));
    }
    for (int rank = 0; rank < all; ++rank) {
      node_of.push_back(rank / each);
    }
  } else {
    ISTHMUS_ASSIGN(node_of, placement_of(nodes));
    if (ranks > static_cast<int>(node_of.size())) {
      return invalid(fmt::format("{} ranks were asked for, but the topology lists {}.", ranks,
                                 node_of.size()));
    }
    node_of.resize(ranks > 0 ? static_cast<std::size_t>(ranks) : node_of.size());
  }
  std::vector<bool> mapped;
  std::vector<bool> seen(node_of.size(), false);
  const std::vector<int> rack_of = racks_of(node_of);
  for (const int node : node_of) {
    if (!seen[static_cast<std::size_t>(node)]) {
      seen[static_cast<std::size_t>(node)] = true;
      mapped.push_back(nodes[count > 0 ? 0 : static_cast<std::size_t>(node)].mapped);
    }
  }
  ISTHMUS_ASSIGN(Topology out, Topology::make(node_of, mapped, rack_of));
  out.set_node_costs(inside);
  out.set_between(between);
  out.set_across(across);
  out.set_pulls(pulls && out.one_mapped_node());
  return out;
}

std::string TopologyFile::to_json() const {
  Json out;
  out[std::string(kFormatKey)] = kFormat;
  if (count > 0) {
    out["node"] = node_json(nodes.front());
    out["count"] = count;
    if (nodes_per_rack > 0) {
      out["nodes_per_rack"] = nodes_per_rack;
    }
  } else {
    out["nodes"] = Json::array();
    for (const NodeShape& node : nodes) {
      out["nodes"].push_back(node_json(node));
    }
  }
  out["pulls"] = pulls;
  out["inside"] = inside_json(inside);
  out["between"] = link_json(between);
  if (across != between) {
    out["across"] = link_json(across);
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<TopologyFile> TopologyFile::from_json(std::string_view text) {
  if (text.size() > kTextBytesMax) {
    return invalid(fmt::format("The topology has more than {} bytes.", kTextBytesMax));
  }
  return read_json<TopologyFile>(text, "topology", file_from);
}

Result<TopologyFile> TopologyFile::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return system_error(Code::kIo, errno, fmt::format("Cannot open the topology file {}", path));
  }
  const auto size = static_cast<std::size_t>(std::max<std::streamoff>(file.tellg(), 0));
  std::string text(std::min(size, kTextBytesMax + 1), '\0');
  file.seekg(0);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) {
    return system_error(Code::kIo, errno, fmt::format("Cannot read the topology file {}", path));
  }
  Result<TopologyFile> out = from_json(text);
  if (!out.ok()) {
    Error error = out.error();
    error.message = fmt::format("{}: {}", path, error.message);
    return error;
  }
  return out;
}

}  // namespace isthmus
