#include "tools/isthmus/tune_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "collectives/select.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/node_view.h"
#include "tools/isthmus/tune_rank.h"
#include "tools/isthmus/tune_timer.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

// None of them is a size of the table.
constexpr std::array<std::size_t, 9> kSizes = {128,    2048,    8192,    32768,   131072,
                                               524288, 2097152, 8388608, 33554432};

// One size of one operation, by the algorithm that is picked for it. Null where it has none.
Result<Json> check_size(TuneTimer* timer, const TunedRanks& tuned, const Topology& topology,
                        OpKind op, std::size_t bytes) {
  const Payload payload{.bytes = bytes};
  ISTHMUS_ASSIGN(const Choice choice, select_algorithm(topology, op, payload, "", &tuned));
  const std::string_view name = choice.algorithm->name;
  const Call call = timer->call_of(op, bytes, timer->own());
  if (!timer->runs_by(name, call)) {
    return Json();
  }
  ISTHMUS_ASSIGN(const double us, timer->time_us(name, call));
  return Json{{"ranks", tuned.ranks},
              {"op", op_kind_name(op)},
              {"bytes", bytes},
              {"algorithm", name},
              {"predicted_us", predict(*choice.algorithm, topology, payload, &tuned).us()},
              {"measured_us", us}};
}

Status check(const Member& member, const TuneArena& arena, const TunedRanks& tuned) {
  ISTHMUS_ASSIGN(const std::unique_ptr<World> world, join_to_measure(member));
  TuneTimer timer(*world, member, tuned.costs.sharing);
  ISTHMUS_TRY(timer.prepare());
  const Topology topology = topology_of(tuned);
  Json rows = Json::array();
  for (int index = 0; index < kOpKindCount; ++index) {
    const OpKind op = static_cast<OpKind>(index);
    for (const std::size_t bytes : kSizes) {
      const std::size_t whole =
          bytes * (op_traits(op).ranked ? static_cast<std::size_t>(member.size) : 1);
      if (op == OpKind::kBarrier || op_traits(op).shards || !op_traits(op).scheduled ||
          whole > timer.buffer_bytes()) {
        continue;
      }
      ISTHMUS_ASSIGN(Json row, check_size(&timer, tuned, topology, op, bytes));
      if (!row.is_null()) {
        rows.push_back(std::move(row));
      }
    }
  }
  if (member.rank == 0) {
    ISTHMUS_TRY(arena.put_result(rows.dump()));
  }
  return world->communicator().barrier();  // no rank leaves while another still measures
}

double error_of(const Json& row) {
  return row["predicted_us"].get<double>() / row["measured_us"].get<double>() - 1.0;
}

double median_error(const Json& rows) {
  std::vector<double> errors;
  for (const Json& row : rows) {
    errors.push_back(std::abs(error_of(row)));
  }
  return median(std::move(errors));
}

void print_rows(const Json& rows) {
  fmt::print("{:>6} {:15} {:>10} {:22} {:>12} {:>12} {:>8}\n", "ranks", "operation", "bytes",
             "algorithm", "predicted us", "measured us", "error");
  for (const Json& row : rows) {
    fmt::print("{:>6} {:15} {:>10} {:22} {:>12.2f} {:>12.2f} {:>+7.1f}%\n", row["ranks"].get<int>(),
               row["op"].get<std::string>(), bytes_text(row["bytes"].get<std::uint64_t>()),
               row["algorithm"].get<std::string>(), row["predicted_us"].get<double>(),
               row["measured_us"].get<double>(), 100.0 * error_of(row));
  }
}

}  // namespace

int run_tune_check(const TuningTable& table, const std::vector<int>& ranks, bool json) {
  Json all = Json::array();
  for (const TunedRanks& tuned : table.ranks) {
    if (!ranks.empty() && std::find(ranks.begin(), ranks.end(), tuned.ranks) == ranks.end()) {
      continue;
    }
    const Result<std::string> text = measure_together(
        tuned.ranks,
        [&](const Member& member, const TuneArena& arena) { return check(member, arena, tuned); });
    if (!text.ok()) {
      fmt::print(stderr, "isthmus tune: {}\n", text.error().to_string());
      return kExitFailed;
    }
    const Json rows = Json::parse(*text);
    if (!json) {
      print_rows(rows);
      fmt::print("{} ranks: median error {:.1f} % of {} times\n\n", tuned.ranks,
                 100.0 * median_error(rows), rows.size());
    }
    all.insert(all.end(), rows.begin(), rows.end());
  }
  if (all.empty()) {
    fmt::print(stderr, "isthmus tune: the table has no such number of ranks\n");
    return kExitUsage;
  }
  if (json) {
    fmt::print("{}\n", all.dump(1));
  } else {
    fmt::print("all: median error {:.1f} % of {} times\n", 100.0 * median_error(all), all.size());
  }
  return 0;
}

}  // namespace isthmus
