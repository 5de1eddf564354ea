#include "collectives/tuning_table.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/log.h"
#include "base/version.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

// Bounds of what a file may hold.
constexpr std::size_t kRanksMax = 64;
constexpr std::size_t kAlgorithmsMax = 512;
constexpr std::size_t kPointsMax = 64;
constexpr double kFactorMost = 1000.0;

Error malformed(std::string_view what) {
  return Error{.code = Code::kInvalidArgument,
               .message = fmt::format("the tuning table is malformed: {}; `isthmus tune` writes a "
                                      "new one",
                                      what)};
}

Json curve_json(const RateCurve& curve) {
  return {{"bytes", curve.bytes}, {"us_per_mib", curve.us_per_mib}};
}

RateCurve curve_from(const Json& json) {
  RateCurve curve;
  curve.bytes = json.at("bytes").get<std::array<double, RateCurve::kPoints>>();
  curve.us_per_mib = json.at("us_per_mib").get<std::array<double, RateCurve::kPoints>>();
  return curve;
}

Json ranks_json(const TunedRanks& tuned) {
  const NodeCosts& costs = tuned.costs;
  Json algorithms = Json::array();
  for (const TunedAlgorithm& algorithm : tuned.algorithms) {
    Json points = Json::array();
    for (const TunedPoint& point : algorithm.points) {
      points.push_back({point.bytes, point.us, point.factor});
    }
    algorithms.push_back({{"op", op_kind_name(algorithm.op)},
                          {"name", algorithm.name},
                          {"bytes_us_factor", std::move(points)}});
  }
  return {{"ranks", tuned.ranks},
          {"ranks_per_processor", costs.sharing},
          {"flag_us", costs.flag_us},
          {"flag_rank_us", costs.flag_rank_us},
          {"switch_us", costs.switch_us},
          {"look_us", costs.look_us},
          {"copy", curve_json(costs.copy)},
          {"read", curve_json(costs.read)},
          {"combine", curve_json(costs.combine)},
          {"reduce", curve_json(costs.reduce)},
          {"pull", curve_json(costs.pull)},
          {"algorithms", std::move(algorithms)}};
}

OpKind op_from(const std::string& name) {
  for (int i = 0; i < kOpKindCount; ++i) {
    if (op_kind_name(static_cast<OpKind>(i)) == name) {
      return static_cast<OpKind>(i);
    }
  }
  throw std::invalid_argument(fmt::format("'{}' is no operation", name));
}

TunedAlgorithm algorithm_from(const Json& json) {
  TunedAlgorithm out;
  out.op = op_from(json.at("op").get<std::string>());
  out.name = json.at("name").get<std::string>();
  for (const Json& point : json.at("bytes_us_factor")) {
    out.points.push_back(
        {point.at(0).get<std::size_t>(), point.at(1).get<double>(), point.at(2).get<double>()});
  }
  const auto sane = [](const TunedPoint& point) {
    return std::isfinite(point.us) && point.us >= 0.0 && std::isfinite(point.factor) &&
           point.factor > 1.0 / kFactorMost && point.factor < kFactorMost && point.bytes > 0;
  };
  const bool ascends = std::adjacent_find(out.points.begin(), out.points.end(),
                                          [](const TunedPoint& one, const TunedPoint& next) {
                                            return one.bytes >= next.bytes;
                                          }) == out.points.end();
  if (out.points.empty() || out.points.size() > kPointsMax || !ascends ||
      !std::all_of(out.points.begin(), out.points.end(), sane)) {
    throw std::invalid_argument(fmt::format("the times of '{}' make no sense", out.name));
  }
  return out;
}

TunedRanks ranks_from(const Json& json) {
  TunedRanks out;
  out.ranks = json.at("ranks").get<int>();
  NodeCosts& costs = out.costs;
  costs.sharing = json.at("ranks_per_processor").get<double>();
  costs.flag_us = json.at("flag_us").get<double>();
  costs.flag_rank_us = json.at("flag_rank_us").get<double>();
  costs.switch_us = json.at("switch_us").get<double>();
  costs.look_us = json.at("look_us").get<double>();
  costs.copy = curve_from(json.at("copy"));
  costs.read = curve_from(json.at("read"));
  costs.combine = curve_from(json.at("combine"));
  costs.reduce = curve_from(json.at("reduce"));
  costs.pull = curve_from(json.at("pull"));
  costs.measured = true;
  const Json& algorithms = json.at("algorithms");
  if (out.ranks < 2 || !costs.sane() || algorithms.size() > kAlgorithmsMax) {
    throw std::invalid_argument(fmt::format("the costs of {} ranks make no sense", out.ranks));
  }
  for (const Json& algorithm : algorithms) {
    out.algorithms.push_back(algorithm_from(algorithm));
  }
  return out;
}

LinkClass link_from(const Json& json) {
  const LinkClass out = {json.at("alpha_us").get<double>(),
                         json.at("beta_us_per_mib").get<double>()};
  for (const double cost : {out.alpha_us, out.beta_us_per_mib}) {
    if (!std::isfinite(cost) || cost < 0.0) {
      throw std::invalid_argument("the costs between nodes make no sense");
    }
  }
  return out;
}

const TunedAlgorithm* find(const TunedRanks& tuned, OpKind op, std::string_view name) {
  const auto found = std::find_if(tuned.algorithms.begin(), tuned.algorithms.end(),
                                  [&](const TunedAlgorithm& algorithm) {
                                    return algorithm.op == op && algorithm.name == name;
                                  });
  return found == tuned.algorithms.end() ? nullptr : &*found;
}

}  // namespace

double TunedRanks::factor(OpKind op, std::string_view name, std::size_t bytes) const {
  const TunedAlgorithm* algorithm = find(*this, op, name);
  if (algorithm == nullptr) {
    return 1.0;
  }
  const std::vector<TunedPoint>& points = algorithm->points;
  const auto above = std::find_if(points.begin(), points.end(),
                                  [&](const TunedPoint& point) { return point.bytes >= bytes; });
  if (above == points.end()) {
    return points.back().factor;
  }
  if (above == points.begin() || above->bytes == bytes) {
    return above->factor;
  }
  const TunedPoint& below = *std::prev(above);
  const double way = std::log(static_cast<double>(bytes) / static_cast<double>(below.bytes)) /
                     std::log(static_cast<double>(above->bytes) / static_cast<double>(below.bytes));
  return below.factor + way * (above->factor - below.factor);
}

bool TunedRanks::measured(OpKind op, std::string_view name) const {
  return find(*this, op, name) != nullptr;
}

const TunedRanks* TuningTable::nearest(int ranks_on_node, double sharing) const {
  const TunedRanks* best = nullptr;
  double best_away = std::numeric_limits<double>::infinity();
  for (const TunedRanks& tuned : ranks) {
    const double away =
        std::abs(std::log(static_cast<double>(tuned.ranks) / std::max(ranks_on_node, 1)));
    if ((tuned.costs.sharing > 1.0) == (sharing > 1.0) && away < best_away) {
      best = &tuned;
      best_away = away;
    }
  }
  return best;
}

std::string TuningTable::why_foreign(const MachineKey& here) const {
  if (machine != here) {
    return fmt::format("it was measured on {}, and this is {}", machine.text(), here.text());
  }
  if (version != kVersion) {
    return fmt::format("isthmus {} measured it, and this is {}", version, kVersion);
  }
  return {};
}

std::string TuningTable::to_json(int indent) const {
  Json out;
  out["format"] = kFormat;
  out["version"] = version;
  out["machine"] = {{"processor", machine.processor},
                    {"processors", machine.processors},
                    {"l2_bytes", machine.l2_bytes},
                    {"l3_bytes", machine.l3_bytes}};
  out["ranks"] = Json::array();
  for (const TunedRanks& tuned : ranks) {
    out["ranks"].push_back(ranks_json(tuned));
  }
  if (between) {
    out["between"] = {{"alpha_us", between->alpha_us},
                      {"beta_us_per_mib", between->beta_us_per_mib}};
  }
  return out.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Result<TuningTable> TuningTable::from_json(std::string_view text) {
  if (text.size() > kTextBytesMax) {
    return malformed(fmt::format("it has more than {} bytes", kTextBytesMax));
  }
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return malformed("it is no JSON object");
  }
  try {
    if (const int format = json.at("format").get<int>(); format != kFormat) {
      return malformed(fmt::format("its format is {}, expected {}", format, kFormat));
    }
    TuningTable out;
    out.version = json.at("version").get<std::string>();
    const Json& machine = json.at("machine");
    out.machine.processor = machine.at("processor").get<std::string>();
    out.machine.processors = machine.at("processors").get<int>();
    out.machine.l2_bytes = machine.at("l2_bytes").get<std::size_t>();
    out.machine.l3_bytes = machine.at("l3_bytes").get<std::size_t>();
    const Json& ranks = json.at("ranks");
    const bool between = json.contains("between");
    const std::size_t least = between ? 0 : 1;
    if (!ranks.is_array() || ranks.size() < least || ranks.size() > kRanksMax) {
      return malformed(fmt::format("it lists {} numbers of ranks, expected {} to {}", ranks.size(),
                                   least, kRanksMax));
    }
    for (const Json& tuned : ranks) {
      out.ranks.push_back(ranks_from(tuned));
    }
    if (between) {
      out.between = link_from(json.at("between"));
    }
    return out;
  } catch (const std::exception& error) {
    return malformed(error.what());
  }
}

std::string tuning_path() {
  const std::string& given = env().TUNE_FILE;
  if (given == "none") {
    return {};
  }
  if (!given.empty()) {
    return given;
  }
  std::string folder = launcher_variable("XDG_CACHE_HOME");
  if (folder.empty()) {
    const std::string home = launcher_variable("HOME");
    if (home.empty()) {
      return {};
    }
    folder = home + "/.cache";
  }
  return folder + "/isthmus/tuning.json";
}

Result<TuningTable> read_tuning(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return system_error(Code::kIo, errno, fmt::format("cannot open the tuning table {}", path));
  }
  std::string text(TuningTable::kTextBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) {
    return system_error(Code::kIo, errno, fmt::format("cannot read the tuning table {}", path));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  ISTHMUS_ASSIGN(TuningTable table, TuningTable::from_json(text));
  if (const std::string why = table.why_foreign(MachineKey::read()); !why.empty()) {
    return Error{.code = Code::kUnsupported,
                 .message = fmt::format("the tuning table does not hold here: {}; `isthmus tune` "
                                        "measures this machine",
                                        why)};
  }
  return table;
}

std::string load_tuning_text() {
  const std::string path = tuning_path();
  if (path.empty()) {
    return {};
  }
  const Result<TuningTable> table = read_tuning(path);
  if (table.ok()) {
    return table->to_json();
  }
  // Nobody has to tune: only a file that was asked for is missed.
  if (table.error().sys_errno != ENOENT || !env().TUNE_FILE.empty()) {
    log(LogLevel::kWarn, "tune", "{} ({}); choosing by built-in costs", table.error().message,
        path);
  }
  return {};
}

}  // namespace isthmus
