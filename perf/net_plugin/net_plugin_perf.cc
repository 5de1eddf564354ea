// net_plugin_perf: drives any network plug-in of NCCL as NCCL's proxy does, without a GPU.
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf/net_plugin/checks.h"
#include "perf/net_plugin/measure.h"
#include "tools/command_line/command_line.h"

namespace isthmus::net_plugin {
namespace {

constexpr const char* kFooter = R"(
Examples:
  net_plugin_perf --plugin libnccl-net-isthmus.so
  net_plugin_perf --plugin libnccl-net-isthmus.so --vs libnccl-net-other.so --rounds 7 --pin
  net_plugin_perf --plugin ./libnccl-net-mine.so --test
  unshare -n sh -c 'ip link set lo up; net_plugin_perf --plugin A.so --pin'
Two hosts' worth of network namespaces, one line in each:
  net_plugin_perf --plugin A.so --meet /tmp/m --rank 0 --address 10.70.0.2
  net_plugin_perf --plugin A.so --meet /tmp/m --rank 1 --address 10.70.0.2

Rows: latency is the median of half a round trip, a stream goes from rank 0 to rank 1 with --depth
messages under way, of which the oldest is tested, as NCCL does. 'of bare' compares with a
non-blocking socket in the same rounds: below 1 is slower for a stream, above 1 for latency. CPU
seconds are of both processes, which poll. Every size is sent once more and compared byte by byte.
docs/net-plugin-perf.md has more.)";

struct Options {
  std::string plugin;
  std::string vs;
  int abi = 0;
  int rounds = 5;
  int depth = 8;
  int device = 0;
  bool pin = false;
  bool log = false;
  bool test = false;
  bool list = false;
  std::string check;
  std::string json;
  std::string meet;
  int rank = -1;
  std::string address = "127.0.0.1";
  std::string sizes = "64K,1M,16M";
};

struct Row {
  Case one;
  std::map<std::string, std::vector<Burst>> bursts;  // by side
};

Status add_sizes(const std::string& text, std::vector<Row>* rows) {
  constexpr std::size_t kBurstBytes = std::size_t{256} << 20;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const Result<std::uint64_t> bytes = parse_bytes(text.substr(begin, end - begin));
    if (!bytes.ok()) {
      return bytes.error();
    }
    const std::size_t count =
        std::clamp<std::size_t>(kBurstBytes / std::max<std::size_t>(*bytes, 1), 8, 200'000);
    rows->push_back({.one = {Kind::kStream, *bytes, count}, .bursts = {}});
    begin = end + 1;
  }
  return Status();
}

void pin_to(int rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(rank) % std::max(1U, std::thread::hardware_concurrency()), &set);
  ::sched_setaffinity(0, sizeof(set), &set);
}

using Plugins = std::vector<std::unique_ptr<NetPlugin>>;
using Sides = std::vector<std::unique_ptr<Side>>;

Status add_plugin(const std::string& path, int abi, Channel& channel, const SideOptions& settings,
                  Plugins* plugins, Sides* sides) {
  Result<std::unique_ptr<NetPlugin>> plugin = NetPlugin::load(path, abi);
  if (!plugin.ok()) {
    return plugin.error();
  }
  const int result = (*plugin)->init();
  if (result != 0) {
    return Error{
        .code = Code::kIo,
        .message = fmt::format("init of {} answered {}: {}.", path, result, result_name(result))};
  }
  plugins->push_back(std::move(*plugin));
  NetPlugin& mine = *plugins->back();
  const std::string label =
      fmt::format("{} v{}{}", mine.name(), mine.version(), sides->empty() ? "" : " (--vs)");
  Result<std::unique_ptr<Side>> side = plugin_side(mine, channel, label, settings);
  if (!side.ok()) {
    return side.error();
  }
  sides->push_back(std::move(*side));
  return Status();
}

// One burst of every side, or in round 0, which is not timed, a comparison of what arrives.
Status one_round(int round, const Sides& sides, Row* row) {
  for (const std::unique_ptr<Side>& side : sides) {
    if (round == 0) {
      Status right = side->verify(row->one);
      if (!right.ok()) {
        return right;
      }
      continue;
    }
    const Result<Burst> burst = side->burst(row->one);
    if (!burst.ok()) {
      return burst.error();
    }
    row->bursts[side->label()].push_back(*burst);
  }
  return Status();
}

Status all_rounds(const Options& options, int rank, const Sides& sides, std::vector<Row>* rows) {
  for (int round = 0; round <= options.rounds; ++round) {
    for (Row& row : *rows) {
      Status status = one_round(round, sides, &row);
      if (!status.ok()) {
        return status;
      }
    }
    if (rank == 0 && ::isatty(STDERR_FILENO) != 0) {
      fmt::print(stderr, "\rround {} of {} ", round, options.rounds);
    }
  }
  return Status();
}

// One process. The rows are rank 0's.
Status run_rank(const Options& options, int rank, Channel& channel, std::vector<Row>* rows) {
  if (options.pin) {
    pin_to(rank);
  }
  SideOptions settings;
  settings.rank = rank;
  settings.depth = options.depth;
  settings.device = options.device;
  settings.address = options.address;
  for (const Row& row : *rows) {
    settings.most_bytes = std::max(settings.most_bytes, row.one.bytes);
  }
  Plugins plugins;
  Sides sides;
  for (const std::string& path : {options.plugin, options.vs}) {
    Status added = path.empty()
                       ? Status()
                       : add_plugin(path, options.abi, channel, settings, &plugins, &sides);
    if (!added.ok()) {
      return added;
    }
  }
  Result<std::unique_ptr<Side>> bare = socket_side(channel, settings);
  if (!bare.ok()) {
    return bare.error();
  }
  sides.push_back(std::move(*bare));
  Status status = all_rounds(options, rank, sides, rows);
  sides.clear();
  for (const std::unique_ptr<NetPlugin>& plugin : plugins) {
    plugin->finalize();
  }
  return status;
}

double value_of(const Row& row, const Burst& burst) {
  return row.one.kind == Kind::kLatency || row.one.bytes < 64 ? burst.us : burst.gb_per_s;
}

std::string what_of(const Row& row) {
  if (row.one.kind == Kind::kLatency) {
    return fmt::format("{} B latency, us", row.one.bytes);
  }
  return row.one.bytes < 64 ? fmt::format("{} B stream, us a message", row.one.bytes)
                            : fmt::format("{} stream, GB/s", bytes_text(row.one.bytes));
}

// Medians of the rounds, and of the rounds' ratios to the bare socket.
nlohmann::json summary_of(const Row& row) {
  nlohmann::json out = {{"what", what_of(row)}, {"bytes", row.one.bytes}};
  const std::vector<Burst>& bare = row.bursts.at("bare socket");
  for (const auto& [label, bursts] : row.bursts) {
    std::vector<double> values;
    std::vector<double> ratios;
    std::vector<double> cpu;
    for (std::size_t i = 0; i < bursts.size(); ++i) {
      values.push_back(value_of(row, bursts[i]));
      ratios.push_back(values.back() / value_of(row, bare[i]));
      cpu.push_back(bursts[i].cpu_s_per_gb);
    }
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    out["sides"][label] = {{"median", median_of(values)},
                           {"spread", (*most - *least) / 2},
                           {"of_bare", median_of(ratios)},
                           {"cpu_s_per_gb", median_of(cpu)}};
  }
  return out;
}

void print_table(const std::vector<Row>& rows) {
  std::ifstream file("/proc/sys/net/ipv4/tcp_congestion_control");
  std::string congestion;
  file >> congestion;
  fmt::print("congestion control: {}\n", congestion);
  fmt::print("{:<26}{:<24}{:>10}{:>10}{:>10}{:>11}\n", "", "", "median", "+-", "of bare",
             "CPU s/GB");
  for (const Row& row : rows) {
    const nlohmann::json summary = summary_of(row);
    for (const auto& [label, side] : summary.at("sides").items()) {
      const double cpu = side.at("cpu_s_per_gb").get<double>();
      fmt::print("{:<26}{:<24}{:>10.3f}{:>10.3f}{:>10.2f}{:>11}\n", what_of(row), label,
                 side.at("median").get<double>(), side.at("spread").get<double>(),
                 side.at("of_bare").get<double>(),
                 row.one.bytes < 64 ? std::string("-") : fmt::format("{:.3f}", cpu));
    }
  }
}

void write_json(const std::string& path, const nlohmann::json& json) {
  if (path == "-") {
    std::cout << json.dump(1) << '\n';
  } else {
    std::ofstream(path) << json.dump(1) << '\n';
  }
}

int complain(const Error& error) {
  fmt::print(stderr, "net_plugin_perf: {}\n", error.message);
  return kExitFailed;
}

// Both processes, or one of two that meet; only rank 0 prints.
int measure(const Options& options) {
  std::vector<Row> rows = {{.one = {Kind::kLatency, 8, 5000}, .bursts = {}},
                           {.one = {Kind::kStream, 8, 200'000}, .bursts = {}}};
  const Status sizes = add_sizes(options.sizes, &rows);
  if (!sizes.ok()) {
    return complain(sizes.error());
  }
  int rank = options.rank;
  pid_t child = 0;
  Result<Channel> channel = Error{};
  if (options.meet.empty()) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      return complain(system_error(Code::kResource, errno, "No channel between the processes"));
    }
    Fd mine(ends[0]);
    Fd theirs(ends[1]);
    child = ::fork();
    rank = child == 0 ? 1 : 0;
    channel = Channel(std::move(child == 0 ? theirs : mine));
  } else {
    channel = Channel::meet_at(options.meet, rank);
  }
  if (!channel.ok()) {
    return complain(channel.error());
  }
  const Status status = run_rank(options, rank, *channel, &rows);
  if (!status.ok()) {
    return complain(status.error());
  }
  if (rank != 0) {
    return 0;
  }
  int ended = 0;
  if (child > 0) {
    ::waitpid(child, &ended, 0);
  }
  if (!options.json.empty()) {
    nlohmann::json out = nlohmann::json::array();
    for (const Row& row : rows) {
      out.push_back(summary_of(row));
    }
    write_json(options.json, out);
  }
  if (options.json != "-") {
    print_table(rows);
  }
  return ended == 0 ? 0 : kExitFailed;
}

// One line of the verdict, or nothing where JSON alone is wanted.
const char* say(const Options& options, const Check& check, const Verdict& verdict) {
  const char* const word = verdict.passed ? "ok" : verdict.skipped ? "skipped" : "FAILED";
  if (options.json != "-") {
    fmt::print("v{:<3} {:<16} {:<8} {}\n", verdict.version, check.name, word,
               verdict.passed ? check.rule : verdict.text);
    std::fflush(stdout);
  }
  return word;
}

std::vector<Check> wanted_checks(const std::string& name) {
  std::vector<Check> out;
  for (const Check& check : checks()) {
    if (name.empty() || name == check.name) {
      out.push_back(check);
    }
  }
  return out;
}

int test(const Options& options) {
  const Result<std::vector<int>> exported = NetPlugin::versions(options.plugin);
  if (!exported.ok()) {
    return complain(exported.error());
  }
  const std::vector<Check> wanted = wanted_checks(options.check);
  if (wanted.empty()) {
    fmt::print(stderr, "net_plugin_perf: no check is named '{}'; --list prints them.\n",
               options.check);
    return kExitUsage;
  }
  nlohmann::json out = nlohmann::json::array();
  int failures = 0;
  for (const int version : options.abi == 0 ? *exported : std::vector<int>{options.abi}) {
    for (const Check& check : wanted) {
      const Verdict verdict = judge(check, options.plugin, version);
      failures += verdict.passed || verdict.skipped ? 0 : 1;
      out.push_back({{"version", version},
                     {"check", check.name},
                     {"verdict", say(options, check, verdict)},
                     {"text", verdict.text}});
    }
  }
  if (!options.json.empty()) {
    write_json(options.json, out);
  }
  if (options.json != "-") {
    fmt::print("{} of {} checks failed\n", failures, out.size());
  }
  return failures == 0 ? 0 : kExitFailed;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Measures and tests network plug-ins of NCCL (net v6 to v12), without a GPU.");
  app.footer(kFooter);
  app.add_option("--plugin", options.plugin,
                 "the plug-in: a path, or a name that the loader finds");
  app.add_option("--vs", options.vs, "a second one, measured in turn with it");
  app.add_option("--abi", options.abi, "version of the interface (default: the newest exported)")
      ->check(CLI::Range(6, 12));
  app.add_option("--device", options.device, "device number (default 0)");
  app.add_option("--rounds", options.rounds, "of every row, in turn (default 5)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--sizes", options.sizes, "of streams (default 64K,1M,16M)");
  app.add_option("--depth", options.depth, "messages under way (default 8)")
      ->check(CLI::Range(1, 32));
  app.add_flag("--pin", options.pin, "bind each process to a processor");
  app.add_flag("--log", options.log, "show what the plug-in logs");
  app.add_flag("--test", options.test, "test NCCL's rules in place of measuring");
  app.add_option("--check", options.check, "with --test: only this one");
  app.add_flag("--list", options.list, "print the checks");
  app.add_option("--meet", options.meet, "socket file where two processes meet; needs --rank");
  app.add_option("--rank", options.rank, "with --meet: 0 or 1")->check(CLI::Range(0, 1));
  app.add_option("--address", options.address, "rank 1's, for the bare socket (127.0.0.1)");
  app.add_option("--json", options.json, "write results to a file; - is stdout, alone");
  if (const std::optional<int> code = parse_command_line(app, argc, argv)) {
    return *code;
  }
  if (options.list) {
    for (const Check& check : checks()) {
      fmt::print("{:<16} {}\n", check.name, check.rule);
    }
    return 0;
  }
  if (options.plugin.empty() || options.meet.empty() != (options.rank < 0)) {
    fmt::print(stderr, "net_plugin_perf: {}; --help explains\n",
               options.plugin.empty() ? "--plugin is missing" : "--meet and --rank go together");
    return kExitUsage;
  }
  show_log(options.log);
  return options.test ? test(options) : measure(options);
}

}  // namespace
}  // namespace isthmus::net_plugin

int main(int argc, char** argv) {
  return isthmus::net_plugin::run(argc, argv);
}
