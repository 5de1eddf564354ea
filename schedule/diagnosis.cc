#include "schedule/diagnosis.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/process.h"
#include "transport/blame.h"

namespace isthmus {
namespace {

bool has_buffers(OpKind kind) {
  return kind != OpKind::kBarrier;
}

void add_unique(std::vector<int>* ranks, int rank) {
  if (std::find(ranks->begin(), ranks->end(), rank) == ranks->end()) {
    ranks->push_back(rank);
  }
}

// Local ranks that an Await still waits for.
void add_missing(const Run& run, const Step& step, Wait* wait) {
  const Channel& channel = *run.channel;
  const std::uint32_t ring = run.sequence % kAnnounceRing;
  for (std::uint32_t i = step.peer; i < step.peer + step.count; ++i) {
    const GroupBlock* block = i == channel.local ? nullptr : channel.peers[i].block;
    if (block == nullptr) {
      continue;
    }
    const std::uint64_t key = block->announcements[ring].key.load(std::memory_order_acquire);
    bool there = key >> 32 == run.sequence;
    if (step.line != kAnnounceLine && there) {
      const std::uint64_t value =
          block->progress[ring][step.line - 1U].value.load(std::memory_order_acquire);
      there = value >> 32 == run.sequence && static_cast<std::uint32_t>(value) >= step.value;
      wait->announced = wait->announced || !there;
    }
    if (!there) {
      add_unique(&wait->world_ranks, channel.peers[i].world_rank);
    }
  }
}

// Whom a rank of the group waits for in this operation, as far as this rank knows. It may be stuck
// in an earlier one; whom it waits for in a later one does not hold this one up.
std::vector<int> waits_of(const Channel& channel, int world_rank, std::uint32_t sequence) {
  for (const MappedPeer& peer : channel.peers) {
    if (peer.world_rank == world_rank && peer.block != nullptr) {
      const RankState& state = peer.block->state;
      const bool waits =
          state.phase.load(std::memory_order_acquire) == kPhaseWaiting &&
          static_cast<std::int32_t>(sequence - state.sequence.load(std::memory_order_relaxed)) >= 0;
      return waits ? state.waits_for() : std::vector<int>();
    }
  }
  for (std::size_t i = 0; i < channel.waiting.size(); ++i) {
    if (channel.world_ranks[i] == world_rank &&
        static_cast<std::int32_t>(sequence - channel.waiting[i].sequence) >= 0) {
      return channel.waiting[i].waits_for;
    }
  }
  return {};
}

}  // namespace

std::string describe_call(std::uint32_t sequence, const OperationInfo& info) {
  const OpKind kind = static_cast<OpKind>(info.kind);
  std::string text = fmt::format("{} #{}", op_kind_name(kind), sequence);
  if (has_buffers(kind)) {
    const std::string count = info.count == kCountVaries ? "varying" : fmt::to_string(info.count);
    text += fmt::format(" {}[{}]", dtype_name(static_cast<DType>(info.dtype)), count);
  }
  if (op_traits(kind).reduces) {
    text += fmt::format(" {}", red_op_name(static_cast<RedOp>(info.red_op)));
  }
  if (op_traits(kind).rooted) {
    text +=
        fmt::format(" {} group rank {}", op_traits(kind).from_root() ? "from" : "to", info.root);
  }
  return text;
}

std::string describe_run(const Channel& channel, std::uint32_t sequence,
                         const OperationInfo& info) {
  return fmt::format("rank {}: {} in group '{}'", channel.world_rank(),
                     describe_call(sequence, info), channel.name);
}

std::string describe_ranks(const std::vector<int>& world_ranks) {
  if (world_ranks.size() == 1) {
    return fmt::format("rank {}", world_ranks.front());
  }
  std::string text = "ranks ";
  for (std::size_t i = 0; i < world_ranks.size(); ++i) {
    const bool last = i + 1 == world_ranks.size();
    text += fmt::format("{}{}", i == 0 ? "" : (last ? " and " : ", "), world_ranks[i]);
  }
  return text;
}

Error describe_failure(const Run& run, std::uint32_t step, const Error& cause) {
  Error error = cause;
  error.message = fmt::format("{} failed at step {} ({}): {}",
                              describe_run(*run.channel, run.sequence, run.info), step,
                              describe(run.plan->schedule.steps[step]), cause.message);
  return error;
}

Error staging_error(const Run& run, std::size_t wanted, std::size_t allowed) {
  const Channel& channel = *run.channel;
  return Error{
      .code = Code::kResource,
      .culprit = channel.world_rank(),
      .message = fmt::format(
          "{} was refused before data moved: the algorithm {} stages {} bytes in shared memory on "
          "rank {}, and ISTHMUS_STAGING_MB allows {} bytes to all groups together; set it higher, "
          "on every rank alike (the group stays usable)",
          describe_run(channel, run.sequence, run.info), run.plan->schedule.algorithm, wanted,
          channel.world_rank(), allowed)};
}

Error exposed_error(const Channel& channel, const MappedPeer& peer) {
  return Error{
      .code = Code::kProtocol,
      .culprit = peer.world_rank,
      .message = fmt::format("rank {} announced buffers outside the {} bytes of shared memory that "
                             "rank {} sees of it; do all ranks run the same isthmus?",
                             peer.world_rank, peer.heap_bytes, channel.world_rank())};
}

Error scratch_error(const Run& run, std::size_t wanted) {
  const Channel& channel = *run.channel;
  return Error{
      .code = Code::kResource,
      .culprit = channel.world_rank(),
      .message = fmt::format(
          "{} was refused before data moved: the algorithm {} needs {} bytes of scratch memory on "
          "rank {}, and the system gave none; free memory there, raise its limit, or make smaller "
          "calls (the group stays usable)",
          describe_run(channel, run.sequence, run.info), run.plan->schedule.algorithm, wanted,
          channel.world_rank())};
}

Error gone_error(int world_rank) {
  return Error{.code = Code::kPeerDead,
               .culprit = world_rank,
               .message = fmt::format("rank {} is gone: its process ended or its connection closed "
                                      "without a goodbye; see its own log for the cause",
                                      world_rank)};
}

Error left_error(int world_rank) {
  return Error{.code = Code::kAborted,
               .culprit = world_rank,
               .message = fmt::format("rank {} has left the group: it destroyed the group, or its "
                                      "program ended",
                                      world_rank)};
}

Wait find_wait(const Run& run) {
  Wait wait;
  const Channel& channel = *run.channel;
  if (run.state == Run::State::kPending) {
    for (const MappedPeer& peer : channel.peers) {
      const bool behind =
          peer.block == nullptr ||
          static_cast<std::int32_t>(peer.block->state.finished.load(std::memory_order_acquire) +
                                    kAnnounceRing - run.sequence) < 0;
      if (behind && peer.world_rank != channel.world_rank()) {
        wait.world_ranks.push_back(peer.world_rank);
      }
    }
    return wait;
  }
  const std::vector<Step>& steps = run.plan->schedule.steps;
  if (run.plan->schedule.in_order) {
    wait.step = run.next;
    if (run.next < steps.size()) {
      add_missing(run, steps[run.next], &wait);
    }
    return wait;
  }
  for (const std::uint32_t index : run.awaiting) {
    wait.step = index;
    add_missing(run, steps[index], &wait);
  }
  for (std::uint32_t index = 0; index < steps.size(); ++index) {
    if (run.posted[index]) {
      wait.step = index;
      add_unique(&wait.world_ranks, channel.world_ranks[steps[index].peer]);
    }
  }
  for (const std::uint32_t index : run.busy) {
    wait.step = index;
    add_unique(&wait.world_ranks, channel.world_ranks[steps[index].peer]);
  }
  return wait;
}

bool is_stopped(const ShmNode& node, int world_rank) {
  const int pid = node.pid_of(world_rank);
  return pid != 0 && process_state(pid) == ProcessState::kStopped;
}

std::vector<int> find_guilty(const Channel& channel, const ShmNode& node, const Wait& wait,
                             std::uint32_t sequence) {
  const auto waits = [&](int rank) {
    return is_stopped(node, rank) ? std::vector<int>() : waits_of(channel, rank, sequence);
  };
  // Whoever others wait for holds this operation up too.
  Wait all = wait;
  for (const int rank : channel.world_ranks) {
    for (const int awaited : rank == channel.world_rank() ? std::vector<int>() : waits(rank)) {
      if (awaited != channel.world_rank()) {
        add_unique(&all.world_ranks, awaited);
      }
    }
  }
  return blamed(channel.world_rank(), all.world_ranks, waits);
}

Error mismatch_between(const Channel& channel, std::uint32_t sequence,
                       const std::vector<Side>& sides) {
  std::map<std::string, std::vector<int>> groups;
  for (const Side& side : sides) {
    groups[describe_call(sequence, side.info)].push_back(side.world_rank);
  }
  std::vector<std::pair<std::string, std::vector<int>>> ordered(groups.begin(), groups.end());
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::string text;
  for (const auto& [call, ranks] : ordered) {
    text += fmt::format("{}{} called {}", text.empty() ? "" : ", ", describe_ranks(ranks), call);
  }
  const bool minority = ordered.front().second.size() < ordered.back().second.size();
  return Error{
      .code = Code::kMismatch,
      .culprit = minority ? ordered.front().second.front() : -1,
      .message = fmt::format(
          "rank {}: operation #{} in group '{}' was refused before data moved: {}{}; every "
          "rank must make the same calls in the same order with equal dtype, reduction and "
          "count (the group stays usable)",
          channel.world_rank(), sequence, channel.name,
          minority ? fmt::format("{} differs: ", describe_ranks(ordered.front().second)) : "",
          text)};
}

Error lengths_error(const Run& run, const Step& step, std::size_t here, std::uint64_t there) {
  const Channel& channel = *run.channel;
  const int peer = channel.world_ranks[step.peer];
  const bool sends = step.kind == StepKind::kSend;
  return Error{
      .code = Code::kMismatch,
      .culprit = -1,
      .message = fmt::format(
          "{} was refused: rank {} sends {} bytes to rank {}, which expects {} bytes; what a rank "
          "sends to another must be as long as what that one takes from it (the group stays "
          "usable)",
          describe_run(channel, run.sequence, run.info), sends ? channel.world_rank() : peer,
          sends ? here : there, sends ? peer : channel.world_rank(), sends ? there : here)};
}

bool gather_sides(const Run& run, std::vector<Side>* sides) {
  const Channel& channel = *run.channel;
  const std::uint32_t ring = run.sequence % kAnnounceRing;
  bool all = true;
  for (std::uint32_t i = 0; i < channel.peers.size(); ++i) {
    if (i == channel.local) {
      sides->push_back({.world_rank = channel.world_rank(), .info = run.info});
      continue;
    }
    const GroupBlock& block = *channel.peers[i].block;
    const std::uint64_t key = block.announcements[ring].key.load(std::memory_order_acquire);
    if (key >> 32 == run.sequence) {
      sides->push_back({.world_rank = channel.peers[i].world_rank, .info = block.infos[ring]});
    } else {
      all = false;
    }
  }
  return all;
}

}  // namespace isthmus
