#include "perf/common/run.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/log.h"
#include "collectives/world.h"
#include "perf/common/measure.h"
#include "perf/common/options.h"
#include "perf/common/report.h"
#include "tools/command_line/command_line.h"
#include "tools/launch/launch.h"
#include "topology/machine.h"
#include "transport/file_store.h"

namespace isthmus {
namespace {

Machine machine_or_empty() {
  Result<Machine> machine = Machine::probe();
  if (!machine.ok()) {
    log(LogLevel::kWarn, "perf", "{}", machine.error().message);
    return {};
  }
  return std::move(machine).value();
}

// Nodes that the ranks run on, as far as boot ids and ISTHMUS_NODE_ID tell them apart.
Result<int> count_nodes(Communicator& group, const Machine& machine) {
  const std::uint64_t mine = hash_bytes(machine.boot_id + "\n" + env().NODE_ID);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  ISTHMUS_TRY(group.all_gather(&mine, all.data(), 1, DType::kInt64));
  return static_cast<int>(std::set<std::uint64_t>(all.begin(), all.end()).size());
}

// Every row of one dtype and reduction. `report` is null on all ranks but 0.
Status measure_sizes(const PerfOptions& options, DType dtype, RedOp red_op, Measure* measure,
                     Report* report) {
  std::size_t before = 0;
  for (const std::uint64_t bytes : options.sizes()) {
    const std::size_t rounded = measure->rounded(bytes, dtype);
    if (rounded == before) {
      continue;  // Too small to differ from the last one.
    }
    before = rounded;
    if (report != nullptr) {
      report->progress(fmt::format("measuring {} {}", dtype_name(dtype), bytes_text(rounded)));
    }
    std::array<std::optional<PerfRow>, 2> rows;
    for (const bool in_place : {false, true}) {
      if (has_form(options.op, in_place)) {
        ISTHMUS_ASSIGN(rows[in_place ? 1 : 0], measure->row(bytes, dtype, red_op, in_place));
      }
    }
    if (report != nullptr) {
      report->add(rows[0], rows[1]);
    }
  }
  return {};
}

// True when no result was wrong, as far as this rank knows.
Result<bool> measure_all(const PerfOptions& options, Communicator& group,
                         const std::function<void()>& alive) {
  if (options.root >= group.size()) {
    return Error{
        .code = Code::kInvalidArgument,
        .message = fmt::format("--root {} is not a rank of {}", options.root, group.size())};
  }
  const Machine machine = machine_or_empty();
  ISTHMUS_ASSIGN(int nodes, count_nodes(group, machine));
  if (options.nodes > 1) {
    nodes = options.nodes;
  }
  const PerfMeta meta{.machine_json = machine.to_json(),
                      .ranks = group.size(),
                      .nodes = nodes,
                      .command = options.command};
  Result<std::unique_ptr<Report>> opened = std::unique_ptr<Report>();
  if (group.rank() == 0) {
    opened = Report::create(options, meta);
  }
  // Rank 0 alone can fail to open a file, and tells why: the others end without a word.
  std::int32_t ready = opened.ok() ? 1 : 0;
  ISTHMUS_TRY(group.broadcast(&ready, 1, DType::kInt32, 0));
  if (!opened.ok()) {
    return opened.error();
  }
  if (ready == 0) {
    return false;
  }
  const std::unique_ptr<Report> report = std::move(opened).value();
  ISTHMUS_ASSIGN(const std::unique_ptr<Measure> measure, Measure::create(group, options, alive));
  const bool reduces = op_traits(options.op).reduces;
  for (const DType dtype : options.dtypes) {
    for (const RedOp red_op : reduces ? options.red_ops : std::vector<RedOp>{RedOp::kSum}) {
      if (!reduces || reducible(dtype, red_op)) {
        ISTHMUS_TRY(measure_sizes(options, dtype, red_op, measure.get(), report.get()));
      }
    }
  }
  return report == nullptr ? Result<bool>(true) : report->finish();
}

int say(int rank, const Error& error) {
  fmt::print(stderr, "rank {}: {}\n", rank, error.to_string());
  return kExitFailed;
}

int run_world(const PerfOptions& options, World& world, const std::function<void()>& alive) {
  const Result<bool> correct = measure_all(options, world.communicator(), alive);
  if (!correct.ok()) {
    return say(world.rank(), correct.error());
  }
  // No rank leaves while another still measures.
  const Status last = world.communicator().barrier();
  if (!last.ok()) {
    return say(world.rank(), last.error());
  }
  return *correct ? 0 : kExitFailed;
}

void pin(const PerfOptions& options, int index) {
  if (options.pin && !pin_round_robin(index)) {
    log(LogLevel::kWarn, "perf", "cannot bind rank {} to a processor; measuring unpinned", index);
  }
}

int run_forked(const PerfOptions& options) {
  return launch(options.ranks, options.stall_s, [&options](const Member& member) {
    pin(options, member.rank);
    WorldOptions world_options;
    world_options.rank = member.rank;
    world_options.size = member.size;
    world_options.incarnation = "perf";
    if (options.nodes > 1) {
      const int node = member.rank / (options.ranks / options.nodes);
      world_options.node_id = fmt::format("perf-node-{}", node);
    }
    Result<std::unique_ptr<FileStore>> store = FileStore::create(member.store);
    if (!store.ok()) {
      return say(member.rank, store.error());
    }
    Result<std::unique_ptr<World>> world = World::create(world_options, **store);
    if (!world.ok()) {
      return say(member.rank, world.error());
    }
    member.joined();
    return run_world(options, **world, member.alive);
  });
}

// Index of this rank on its machine, as the launcher tells it.
int local_index(int rank) {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                           "SLURM_LOCALID", "MV2_COMM_WORLD_LOCAL_RANK"}) {
    const std::string text = launcher_variable(name);
    int value = 0;
    const char* end = text.data() + text.size();
    if (!text.empty() && std::from_chars(text.data(), end, value).ptr == end) {
      return value;
    }
  }
  return rank;
}

int run_launched(const PerfOptions& options, const WorldOptions& place) {
  pin(options, local_index(place.rank));
  Result<std::unique_ptr<World>> world = World::from_launcher();
  if (!world.ok()) {
    return say(place.rank, world.error());
  }
  return run_world(options, **world, [] {});
}

}  // namespace

int run_perf(OpKind op, int argc, const char* const* argv) {
  const Result<WorldOptions> place = options_from_launcher();
  PerfOptions options;
  const std::optional<int> code =
      parse_perf_options(op, argc, argv, place.ok() && place->rank != 0, &options);
  if (code) {
    return *code;
  }
  if (options.ranks > 0) {
    return run_forked(options);
  }
  if (!place.ok()) {
    fmt::print(stderr, "{}_perf: no ranks: give --ranks N, or {}\n", perf_op_name(op),
               place.error().message);
    return kExitUsage;
  }
  return run_launched(options, *place);
}

}  // namespace isthmus
