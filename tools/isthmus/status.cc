#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/dtype.h"
#include "schedule/diagnosis.h"
#include "schedule/schedule.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/rank_scan.h"
#include "transport/blame.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

std::string operation_text(const RankInGroup& member) {
  const OperationInfo& info = member.operation;
  if (!member.has_operation || info.kind >= kOpKindCount || info.dtype >= kDTypeCount ||
      info.red_op >= kRedOpCount) {
    return "-";
  }
  const OpKind op = static_cast<OpKind>(info.kind);
  std::string text(op_kind_name(op));
  if (op != OpKind::kBarrier) {
    text += fmt::format(" {}[{}]", dtype_name(static_cast<DType>(info.dtype)), info.count);
  }
  if (op_traits(op).reduces) {
    text += fmt::format(" {}", red_op_name(static_cast<RedOp>(info.red_op)));
  }
  return text;
}

std::string duration_text(std::int64_t ns) {
  if (ns < 0) {
    return "-";
  }
  const double seconds = static_cast<double>(ns) * 1e-9;
  if (seconds < 120.0) {
    return fmt::format("{:.1f} s", seconds);
  }
  return fmt::format("{} min {} s", static_cast<long>(seconds) / 60,
                     static_cast<long>(seconds) % 60);
}

const RankInGroup* find_member(const GroupSeen& group, int world_rank) {
  for (const RankInGroup& member : group.members) {
    if (member.world_rank == world_rank) {
      return &member;
    }
  }
  return nullptr;
}

// Whom it waits for; nobody once its process is stopped or gone.
std::vector<int> waits_of(const RankInGroup* member) {
  const bool lives = member != nullptr && member->process != ProcessState::kStopped &&
                     member->process != ProcessState::kDead;
  return lives && member->phase == "waiting" ? member->waits_for : std::vector<int>();
}

std::string verdict_on(const RankInGroup& member) {
  switch (member.process) {
    case ProcessState::kDead:
      return fmt::format("its process {} is gone", member.pid);
    case ProcessState::kStopped:
      return fmt::format("its process {} is stopped; `kill -CONT {}` lets it go on", member.pid,
                         member.pid);
    default:
      break;
  }
  if (member.phase == "failed") {
    return "its operation has failed";
  }
  return fmt::format(
      "it has finished {} operations and is outside of the group: its process {} computes, or it "
      "waits elsewhere (`py-spy dump --pid {}` shows where)",
      member.finished, member.pid, member.pid);
}

// Why `waiter` waits for `rank`, which it blames.
std::string verdict_between(const GroupSeen& group, const RankInGroup& waiter, int rank) {
  const RankInGroup* blamed = find_member(group, rank);
  if (blamed == nullptr) {
    return fmt::format(
        "rank {} is waited for, and is not seen here: run `isthmus status` on its machine, in its "
        "container, as its user",
        rank);
  }
  if (!waits_of(blamed).empty()) {
    return fmt::format("rank {} and rank {} wait for one another", waiter.world_rank, rank);
  }
  return fmt::format("rank {} is waited for: {}", rank, verdict_on(*blamed));
}

// One sentence for each rank that others wait for.
std::vector<std::string> verdicts(const GroupSeen& group) {
  std::vector<std::string> sentences;
  const auto add = [&](std::string sentence) {
    if (std::find(sentences.begin(), sentences.end(), sentence) == sentences.end()) {
      sentences.push_back(std::move(sentence));
    }
  };
  const auto waits = [&](int rank) { return waits_of(find_member(group, rank)); };
  for (const RankInGroup& member : group.members) {
    if (!member.failure.empty()) {
      add(fmt::format("rank {} says: {}", member.world_rank, member.failure));
    }
    if (member.phase != "waiting" || member.waits_for.empty()) {
      continue;
    }
    for (const int rank : blamed(member.world_rank, member.waits_for, waits)) {
      add(verdict_between(group, member, rank));
    }
  }
  return sentences;
}

Json json_of(const RankInGroup& member) {
  Json out;
  out["rank"] = member.world_rank;
  out["group_rank"] = member.group_rank;
  out["pid"] = member.pid;
  out["process"] = process_state_name(member.process);
  out["operation"] = operation_text(member) == "-" ? Json(nullptr) : Json(operation_text(member));
  out["sequence"] = member.sequence;
  out["finished"] = member.finished;
  out["phase"] = member.phase;
  out["phase_s"] =
      member.phase_ns < 0 ? Json(nullptr) : Json(static_cast<double>(member.phase_ns) * 1e-9);
  out["step"] = member.phase == "waiting" ? Json(member.step) : Json(nullptr);
  out["waits_for"] = member.waits_for;
  out["failure"] = member.failure.empty() ? Json(nullptr) : Json(member.failure);
  return out;
}

void print_json(const std::vector<GroupSeen>& groups) {
  Json out;
  out["groups"] = Json::array();
  for (const GroupSeen& group : groups) {
    Json entry;
    entry["name"] = group.name;
    entry["key"] = fmt::format("{:016x}", group.key);
    entry["ranks"] = group.ranks;
    entry["members"] = Json::array();
    for (const RankInGroup& member : group.members) {
      entry["members"].push_back(json_of(member));
    }
    entry["verdicts"] = verdicts(group);
    out["groups"].push_back(std::move(entry));
  }
  fmt::print("{}\n", out.dump(1, ' ', false, Json::error_handler_t::replace));
}

void print_group(const GroupSeen& group) {
  fmt::print("group '{}': {} ranks, {} of them on this machine\n", group.name, group.ranks,
             group.members.size());
  fmt::print("  {:>5} {:>8} {:9} {:32} {:>10} {:8} {:>10} {:>5} {}\n", "rank", "pid", "process",
             "operation", "number", "phase", "for", "step", "waits for");
  for (const RankInGroup& member : group.members) {
    const bool waits = member.phase == "waiting";
    fmt::print("  {:>5} {:>8} {:9} {:32} {:>10} {:8} {:>10} {:>5} {}\n", member.world_rank,
               member.pid, process_state_name(member.process), operation_text(member),
               member.sequence, member.phase, duration_text(member.phase_ns),
               waits ? fmt::format("{}", member.step) : "-",
               member.waits_for.empty() ? "-" : describe_ranks(member.waits_for));
  }
  for (const std::string& sentence : verdicts(group)) {
    fmt::print("  {}\n", sentence);
  }
}

}  // namespace

int run_status(const StatusOptions& options) {
  const Result<std::vector<GroupSeen>> groups = scan_ranks();
  if (!groups.ok()) {
    fmt::print(stderr, "isthmus: {}\n", groups.error().to_string());
    return kExitFailed;
  }
  if (options.json) {
    print_json(*groups);
    return 0;
  }
  if (groups->empty()) {
    fmt::print(
        "no ranks found: no process that this user may look into has an isthmus group open (not "
        "seen: ranks of other users and in other containers, and ranks that warned that they could "
        "create no shared memory)\n");
    return 0;
  }
  for (const GroupSeen& group : *groups) {
    print_group(group);
  }
  return 0;
}

}  // namespace isthmus
