// `isthmus tune`: measures what the library chooses by, and writes it down for later jobs.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "base/version.h"
#include "collectives/select.h"
#include "collectives/tuning_table.h"
#include "collectives/world.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/link_probe.h"
#include "tools/isthmus/node_view.h"
#include "tools/isthmus/tune_check.h"
#include "tools/isthmus/tune_rank.h"
#include "tools/isthmus/write_file.h"
#include "tools/launch/launch.h"

namespace isthmus {
namespace {

// Few enough processors for jobs to have more ranks than that.
constexpr int kFewProcessors = 8;

// Up to so many ranks by default: more take minutes.
constexpr int kUsualMost = 64;

std::vector<int> usual_ranks() {
  const int processors = processors_allowed();
  const int most =
      std::clamp(processors <= kFewProcessors ? 2 * processors : processors, 2, kUsualMost);
  std::vector<int> out;
  for (int ranks = 2; ranks < most; ranks *= 2) {
    out.push_back(ranks);
  }
  out.push_back(most);
  return out;
}

// One line on a terminal, nothing elsewhere.
class Progress {
 public:
  Progress(std::size_t parts, bool quiet) : parts_(parts), shown_(!quiet && ::isatty(2) == 1) {}

  void show(std::size_t part, int ranks, double share, std::string_view what) const {
    if (!shown_) {
      return;
    }
    constexpr std::size_t kWidth = 30;
    const double all = (static_cast<double>(part) + share) / static_cast<double>(parts_);
    const auto full = static_cast<std::size_t>(std::clamp(all, 0.0, 1.0) * kWidth);
    fmt::print(stderr, "\r\x1b[K[{}{}] {:3.0f} %  {} ranks: {}", std::string(full, '#'),
               std::string(kWidth - full, '.'), 100.0 * all, ranks, what);
    std::fflush(stderr);
  }

  void clear() const {
    if (shown_) {
      fmt::print(stderr, "\r\x1b[K");
    }
  }

 private:
  std::size_t parts_;
  bool shown_;
};

Result<TunedRanks> measure(int ranks, std::size_t part, const Progress& progress) {
  ISTHMUS_ASSIGN(const std::string text,
                 measure_together(ranks, [&](const Member& member, const TuneArena& arena) {
                   return tune_rank(member, arena, [&](double share, std::string_view what) {
                     progress.show(part, ranks, share, what);
                   });
                 }));
  ISTHMUS_ASSIGN(TuningTable table, TuningTable::from_json(text));
  return std::move(table.ranks.front());
}

// What an earlier call measured with other numbers of ranks on this machine, or between nodes,
// stays.
void keep_others(const std::string& path, TuningTable* table) {
  const Result<TuningTable> before = read_tuning(path);
  if (!before.ok()) {
    return;
  }
  if (!table->between) {
    table->between = before->between;
  }
  for (const TunedRanks& old : before->ranks) {
    const bool again =
        std::any_of(table->ranks.begin(), table->ranks.end(), [&](const TunedRanks& tuned) {
          return tuned.ranks == old.ranks &&
                 (tuned.costs.sharing > 1.0) == (old.costs.sharing > 1.0);
        });
    if (!again) {
      table->ranks.push_back(old);
    }
  }
  std::sort(table->ranks.begin(), table->ranks.end(),
            [](const TunedRanks& one, const TunedRanks& other) { return one.ranks < other.ranks; });
}

// "line to 48 B, slot to 4 KiB, slice beyond": an operation's algorithms by size.
std::string picks_text(const TunedRanks& tuned, OpKind op) {
  const Topology topology = topology_of(tuned);
  std::string text;
  std::string_view last;
  std::size_t before = 0;
  for (std::uint32_t index = 0; size_class_bytes(index) <= (std::size_t{64} << 20); ++index) {
    const std::size_t bytes = size_class_bytes(index);
    const Result<Choice> choice = select_algorithm(topology, op, {.bytes = bytes}, "", &tuned);
    if (!choice.ok()) {
      continue;
    }
    if (!last.empty() && choice->algorithm->name != last) {
      text += fmt::format("{} to {}, ", last, bytes_text(before));
    }
    last = choice->algorithm->name;
    before = bytes;
  }
  return text + fmt::format("{}{}", last, text.empty() ? "" : " beyond");
}

void print_summary(const TunedRanks& tuned) {
  const NodeCosts& costs = tuned.costs;
  fmt::print("{} ranks{}: a flag is seen after {:.2f} us\n", tuned.ranks,
             costs.sharing > 1.0 ? fmt::format(", {:.1f} on a processor", costs.sharing) : "",
             costs.wait_us(tuned.ranks));
  fmt::print("  {:34}", "us a MiB, by buffers of a rank");
  for (const double bytes : costs.copy.bytes) {
    fmt::print("{:>10}", bytes_text(static_cast<std::uint64_t>(bytes)));
  }
  fmt::print("\n");
  for (const auto& [name, curve] : {std::pair("copy of own memory", costs.copy),
                                    {"read of another rank's memory", costs.read},
                                    {"reduction, the result", costs.combine},
                                    {"reduction, each further operand", costs.reduce}}) {
    fmt::print("  {:34}", name);
    for (const double rate : curve.us_per_mib) {
      fmt::print("{:>10.1f}", rate);
    }
    fmt::print("\n");
  }
  for (const OpKind op : {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter}) {
    fmt::print("  {}: {}\n", op_kind_name(op), picks_text(tuned, op));
  }
}

// Numbers of a machine that does something else are worth little.
void warn_of_load() {
  double load = 0.0;
  constexpr double kQuiet = 0.5;
  if (::getloadavg(&load, 1) == 1 && load > kQuiet) {
    fmt::print(stderr,
               "isthmus tune: other programs are running (load average {:.1f}): run it again when "
               "the machine is idle\n",
               load);
  }
}

int say(const Error& error) {
  fmt::print(stderr, "isthmus tune: {}\n", error.to_string());
  return kExitFailed;
}

TuningTable empty_table() {
  TuningTable table;
  table.version = std::string(kVersion);
  table.machine = MachineKey::read();
  return table;
}

// Writes the table and says who will choose by it.
int save(const TuneOptions& options, const std::string& path, TuningTable* table) {
  keep_others(path, table);
  const std::string text = table->to_json(1) + "\n";
  if (const Status written = write_file(path, text); !written.ok()) {
    return say(written.error());
  }
  if (options.json) {
    fmt::print("{}", text);
  }
  fmt::print(options.json ? stderr : stdout,
             "wrote {}: jobs whose rank 0 runs on this machine ({}) choose by it{}\n", path,
             table->machine.text(),
             options.output.empty()
                 ? ""
                 : fmt::format(" when ISTHMUS_TUNE_FILE={} is in its environment", path));
  return 0;
}

// Started as the ranks of a job: what a message between its nodes costs. Rank 0 writes.
int tune_between(const TuneOptions& options, const std::string& path) {
  const Result<std::unique_ptr<World>> world = World::from_launcher();
  if (!world.ok()) {
    return say(world.error());
  }
  Communicator& group = (*world)->communicator();
  if (group.topology().nodes() < 2) {
    return say({.code = Code::kInvalidArgument,
                .message = fmt::format("all {} ranks of this job share a node: a job measures what "
                                       "is between nodes; without one, `isthmus tune` measures "
                                       "what is inside",
                                       group.size())});
  }
  const Result<LinkClass> link = probe_between(group);
  int code = link.ok() ? 0 : say(link.error());
  if (link.ok() && group.rank() == 0) {
    TuningTable table = empty_table();
    table.between = *link;
    if (!options.json) {
      fmt::print("between nodes: {:.1f} us a message, {:.1f} us a MiB\n", link->alpha_us,
                 link->beta_us_per_mib);
    }
    code = save(options, path, &table);
  }
  // No rank leaves while another still measures.
  const Status together = group.barrier();
  return together.ok() ? code : say(together.error());
}

}  // namespace

int run_tune(const TuneOptions& options) {
  const std::string path = options.output.empty() ? tuning_path() : options.output;
  if (path.empty()) {
    fmt::print(stderr,
               "isthmus tune: there is no place for the table: ISTHMUS_TUNE_FILE is none, or HOME "
               "is not set; give --output FILE\n");
    return kExitUsage;
  }
  if (options.check) {
    const Result<TuningTable> table = read_tuning(path);
    return table.ok() ? run_tune_check(*table, options.ranks, options.json) : say(table.error());
  }
  const Result<WorldOptions> launched = options_from_launcher();
  if (launched.ok() && launched->size > 1) {
    if (!options.ranks.empty()) {
      fmt::print(stderr, "isthmus tune: the job says how many ranks there are: --ranks cannot\n");
      return kExitUsage;
    }
    return tune_between(options, path);
  }
  std::vector<int> counts = options.ranks.empty() ? usual_ranks() : options.ranks;
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  TuningTable table = empty_table();
  warn_of_load();
  const Progress progress(counts.size(), options.json);
  for (std::size_t part = 0; part < counts.size(); ++part) {
    Result<TunedRanks> tuned = measure(counts[part], part, progress);
    progress.clear();
    if (!tuned.ok()) {
      return say(tuned.error());
    }
    if (!options.json) {
      print_summary(*tuned);
    }
    table.ranks.push_back(std::move(tuned).value());
  }
  return save(options, path, &table);
}

}  // namespace isthmus
