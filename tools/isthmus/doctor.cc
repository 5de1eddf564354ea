#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "base/env.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/machine_facts.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

// A few descriptors for each of 64 local ranks, and one socket for each of some hundred peers.
constexpr std::uint64_t kOpenFilesWanted = 1024;

// What one rank needs in /dev/shm when memfd is forbidden, beside its staging: 1024 group blocks.
constexpr std::uint64_t kBlocksBytes = 48ULL << 20;

enum class Level : std::uint8_t { kOk, kWarn, kFail };

// A verdict on one thing, and what to do about it.
struct Verdict {
  Level level = Level::kOk;
  std::string name;
  std::string found;
  std::string cure;  // empty when nothing is wrong
};

constexpr std::string_view level_name(Level level) {
  return level == Level::kOk ? "ok" : level == Level::kWarn ? "warn" : "fail";
}

std::string outcome(int failure) {
  return failure == 0 ? std::string("works")
                      : fmt::format("{} (errno {})", std::strerror(failure), failure);
}

Verdict call_verdict(const char* name, int failure, Level when_failing, const char* cure) {
  return {.level = failure == 0 ? Level::kOk : when_failing,
          .name = name,
          .found = outcome(failure),
          .cure = failure == 0 ? "" : cure};
}

void check_shared_memory(std::vector<Verdict>* verdicts) {
  const int memfd = try_memfd();
  const int named = try_named_shared_memory();
  verdicts->push_back(
      call_verdict("memfd_create", memfd, named == 0 ? Level::kWarn : Level::kFail,
                   named == 0 ? "files in /dev/shm are used instead; allow memfd_create in "
                                "the container's seccomp profile"
                              : "allow memfd_create in the container's seccomp profile, or "
                                "mount /dev/shm; without both ranks talk over TCP"));
  const std::optional<FileSystemSpace> space = space_of("/dev/shm");
  const std::uint64_t wanted = kBlocksBytes + (static_cast<std::uint64_t>(env().STAGING_MB) << 20);
  const bool needed = memfd != 0 || env().SHM_NAMED;
  Verdict size{.name = "/dev/shm", .found = "absent", .cure = ""};
  if (space) {
    size.found = fmt::format("{} MiB, {} MiB free", space->bytes >> 20, space->free_bytes >> 20);
  }
  if (needed && (!space || space->free_bytes < wanted)) {
    size.level = Level::kWarn;
    size.cure = fmt::format(
        "a rank needs {} MiB of it: enlarge it (docker run --shm-size), lower ISTHMUS_STAGING_MB, "
        "or "
        "allow memfd_create",
        wanted >> 20);
  }
  verdicts->push_back(size);
}

void check_calls(std::vector<Verdict>* verdicts) {
  verdicts->push_back(
      call_verdict("pidfd_open", try_pidfd(), Level::kWarn,
                   "deaths are seen by closed sockets instead, which a forked child "
                   "keeps open; use Linux 5.3 or newer and allow it in seccomp"));
  verdicts->push_back(call_verdict("eventfd", try_eventfd(), Level::kFail,
                                   "sleeping ranks cannot be woken: allow it in the container's "
                                   "seccomp profile"));
  verdicts->push_back(
      call_verdict("passing descriptors", try_passing_descriptors(), Level::kFail,
                   "ranks of a node cannot share memory: allow SCM_RIGHTS over unix "
                   "sockets, or set ISTHMUS_SHM=0"));
}

void check_limits(std::vector<Verdict>* verdicts) {
  const std::optional<Limit> files = limit_of(RLIMIT_NOFILE);
  Verdict open_files{.name = "open files", .found = "unknown", .cure = ""};
  if (files) {
    open_files.found =
        fmt::format("{} (hard limit {})", limit_text(files->soft), limit_text(files->hard));
    if (files->soft < kOpenFilesWanted) {
      open_files.level = Level::kWarn;
      open_files.cure = fmt::format("jobs of many ranks need more: ulimit -n {}",
                                    std::min<std::uint64_t>(files->hard, 65536));
    }
  }
  verdicts->push_back(open_files);
  const std::optional<Limit> locked = limit_of(RLIMIT_MEMLOCK);
  // Nothing has to be locked today: this tells what RDMA and io_uring buffers would get.
  verdicts->push_back(
      {.name = "locked memory",
       .found = locked ? fmt::format("{} bytes", limit_text(locked->soft)) : std::string("unknown"),
       .cure = ""});
}

void check_network(std::vector<Verdict>* verdicts) {
  const std::string allowed =
      first_line("/proc/sys/net/ipv4/tcp_allowed_congestion_control").value_or("");
  const std::string current =
      first_line("/proc/sys/net/ipv4/tcp_congestion_control").value_or("unknown");
  Verdict congestion{
      .name = "TCP congestion control",
      .found = fmt::format("{}; allowed: {}", current, allowed.empty() ? "unknown" : allowed),
      .cure = ""};
  const bool usable =
      allowed.find("cubic") != std::string::npos || allowed.find("reno") != std::string::npos;
  if (!allowed.empty() && !usable) {
    congestion.level = Level::kWarn;
    congestion.cure =
        "neither cubic nor reno is allowed, and bbr is slow on short paths: sysctl -w "
        "net.ipv4.tcp_allowed_congestion_control='cubic reno'";
  }
  verdicts->push_back(congestion);
  std::vector<std::string> up;
  for (const Interface& interface : interfaces()) {
    if (interface.up && !interface.loopback) {
      up.push_back(interface.name);
    }
  }
  Verdict network{
      .name = "network interfaces",
      .found = up.empty() ? std::string("loopback only") : fmt::format("{}", fmt::join(up, ", ")),
      .cure = ""};
  if (up.empty()) {
    network.level = Level::kWarn;
    network.cure = "ranks of this machine can talk, those of other machines cannot be reached";
  }
  verdicts->push_back(network);
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  std::vector<Verdict> verdicts;
  check_shared_memory(&verdicts);
  check_calls(&verdicts);
  check_limits(&verdicts);
  check_network(&verdicts);
  Json rows = Json::array();
  bool failed = false;
  for (const Verdict& verdict : verdicts) {
    failed = failed || verdict.level == Level::kFail;
    if (options.json) {
      rows.push_back({{"check", verdict.name},
                      {"verdict", level_name(verdict.level)},
                      {"found", verdict.found},
                      {"cure", verdict.cure.empty() ? Json(nullptr) : Json(verdict.cure)}});
    } else {
      fmt::print("{:5} {:24} {}{}{}\n", level_name(verdict.level), verdict.name, verdict.found,
                 verdict.cure.empty() ? "" : ": ", verdict.cure);
    }
  }
  if (options.json) {
    fmt::print("{}\n", rows.dump(1));
  }
  return failed ? kExitFailed : 0;
}

}  // namespace isthmus
