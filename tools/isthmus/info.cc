#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "base/env.h"
#include "base/version.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/machine_facts.h"
#include "tools/isthmus/rank_scan.h"
#include "topology/machine.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

Json env_json() {
  Json rows = Json::array();
  const std::vector<EnvRow> table = env_table();
  const std::vector<std::string> values = env_values(env());
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string name(table[i].name);
    Json row;
    row["name"] = name;
    row["value"] = values[i];
    row["source"] = launcher_variable(name.c_str()).empty() ? "default" : "environment";
    row["default"] = table[i].fallback;
    row["type"] = table[i].type;
    row["text"] = table[i].text;
    rows.push_back(std::move(row));
  }
  return rows;
}

Json limit_json(int resource) {
  const std::optional<Limit> limit = limit_of(resource);
  return limit ? Json(limit_text(limit->soft)) : Json(nullptr);
}

Json memory_json() {
  Json out;
  for (const char* field :
       {"MemTotal", "MemAvailable", "HugePages_Total", "HugePages_Free", "Hugepagesize"}) {
    const std::optional<std::uint64_t> value = meminfo(field);
    const bool pages = std::string_view(field).starts_with("HugePages_");
    const std::uint64_t unit = pages ? 1 : 1024;
    out[std::string(field) + (pages ? "" : "_bytes")] = value ? Json(*value * unit) : Json(nullptr);
  }
  for (const char* name : {"enabled", "shmem_enabled"}) {
    const std::optional<std::string> mode =
        first_line(fmt::format("/sys/kernel/mm/transparent_hugepage/{}", name));
    out[fmt::format("transparent_hugepage_{}", name)] = mode ? Json(*mode) : Json(nullptr);
  }
  return out;
}

Json shared_memory_json() {
  Json out;
  const std::optional<FileSystemSpace> space = space_of("/dev/shm");
  out["dev_shm_bytes"] = space ? Json(space->bytes) : Json(nullptr);
  out["dev_shm_free_bytes"] = space ? Json(space->free_bytes) : Json(nullptr);
  out["memfd"] = try_memfd() == 0;
  out["memfd_sealing"] = try_sealing() == 0;
  out["pidfd"] = try_pidfd() == 0;
  out["memlock_bytes"] = limit_json(RLIMIT_MEMLOCK);
  out["open_files"] = limit_json(RLIMIT_NOFILE);
  return out;
}

Json process_copy_json() {
  Json out;
  const std::optional<std::string> scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  const int failure = try_cross_process_copy();
  out["allowed"] = failure == 0;
  if (failure != 0) {
    out["refusal"] = std::strerror(failure);
  }
  out["yama_ptrace_scope"] = scope ? Json(*scope) : Json(nullptr);
  return out;
}

// Of the ranks that `isthmus status` finds.
Json staging_json() {
  Json out;
  const Result<std::vector<StagingSeen>> seen = scan_staging();
  if (!seen.ok()) {
    out["unknown"] = seen.error().message;
    return out;
  }
  std::uint64_t used = 0;
  Json ranks = Json::array();
  for (const StagingSeen& rank : *seen) {
    Json entry;
    entry["rank"] = rank.world_rank;
    entry["pid"] = rank.pid;
    entry["most_bytes"] = rank.bytes;
    entry["used_bytes"] = rank.used_bytes;
    ranks.push_back(std::move(entry));
    used += rank.used_bytes;
  }
  out["used_bytes"] = used;
  out["ranks"] = std::move(ranks);
  return out;
}

void print_staging(const Json& staging) {
  fmt::print("staging memory of running ranks\n");
  if (staging.contains("unknown")) {
    fmt::print("  {}\n", staging["unknown"].get<std::string>());
    return;
  }
  constexpr double kMiB = 1 << 20;
  for (const Json& rank : staging["ranks"]) {
    fmt::print("  rank {:<6} pid {:<10} {:.1f} MiB of {:.1f}\n", rank["rank"].get<int>(),
               rank["pid"].get<int>(), rank["used_bytes"].get<double>() / kMiB,
               rank["most_bytes"].get<double>() / kMiB);
  }
  fmt::print("  {:32} {:.1f} MiB\n", "in all", staging["used_bytes"].get<double>() / kMiB);
}

Json number_json(const std::optional<std::uint64_t>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json interfaces_json() {
  Json out = Json::array();
  for (const Interface& interface : interfaces()) {
    Json entry;
    entry["name"] = interface.name;
    entry["up"] = interface.up;
    entry["speed_mbit"] = number_json(interface.speed_mbit);
    entry["mtu"] = number_json(interface.mtu);
    entry["addresses"] = interface.addresses;
    out.push_back(std::move(entry));
  }
  return out;
}

// A nested object as lines "  key   value".
void print_section(const std::string& title, const Json& section) {
  fmt::print("{}\n", title);
  for (const auto& [key, value] : section.items()) {
    std::string text = value.is_string() ? value.get<std::string>()
                       : value.is_null() ? std::string("unknown")
                                         : value.dump();
    if (key.ends_with("_bytes") && value.is_number_unsigned()) {
      text = fmt::format("{} ({:.1f} MiB)", text, value.get<double>() / (1 << 20));
    }
    fmt::print("  {:32} {}\n", key, text);
  }
}

void print_interfaces() {
  fmt::print("network interfaces\n");
  for (const Interface& interface : interfaces()) {
    const std::string speed = interface.speed_mbit ? fmt::format("{} Mbit/s", *interface.speed_mbit)
                                                   : std::string("speed unknown");
    const std::string mtu =
        interface.mtu ? fmt::format("mtu {}", *interface.mtu) : std::string("mtu unknown");
    fmt::print("  {:16} {:5} {:14} {:12} {}\n", interface.name, interface.up ? "up" : "down", speed,
               mtu, fmt::join(interface.addresses, ", "));
  }
}

void print_env(const Json& rows) {
  fmt::print("environment variables (docs/env.md explains them)\n");
  for (const Json& row : rows) {
    const std::string value = row["value"].get<std::string>();
    fmt::print("  {:26} {:16} {}\n", row["name"].get<std::string>(), value.empty() ? "''" : value,
               row["source"].get<std::string>());
  }
}

}  // namespace

int run_info(const InfoOptions& options) {
  if (!options.save.empty()) {
    return run_info_save(options);
  }
  if (options.env) {
    const Json rows = env_json();
    if (options.json) {
      fmt::print("{}\n", rows.dump(1));
    } else {
      print_env(rows);
    }
    return 0;
  }
  const Result<Machine> machine = Machine::probe();
  if (!machine.ok()) {
    fmt::print(stderr, "isthmus: {}\n", machine.error().to_string());
    return kExitFailed;
  }
  Json out;
  out["version"] = kVersion;
  out["machine"] = Json::parse(machine->to_json(), nullptr, false);
  out["memory"] = memory_json();
  out["shared_memory"] = shared_memory_json();
  out["process_copy"] = process_copy_json();
  out["staging"] = staging_json();
  out["interfaces"] = interfaces_json();
  out["environment"] = env_json();
  if (options.json) {
    fmt::print("{}\n", out.dump(1, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  fmt::print("isthmus {}\n", kVersion);
  print_section("machine, as far as this process may use it", out["machine"]);
  print_section("memory", out["memory"]);
  print_section("shared memory and limits", out["shared_memory"]);
  print_section("copies between processes (process_vm_readv)", out["process_copy"]);
  print_staging(out["staging"]);
  print_interfaces();
  print_env(out["environment"]);
  return 0;
}

}  // namespace isthmus
