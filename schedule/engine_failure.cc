// How the engine notices that something is wrong, and tells.

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/log.h"
#include "schedule/diagnosis.h"
#include "schedule/engine.h"

namespace isthmus {
namespace {

// Most looks for messages of a rank that has left: a lane is empty long before.
constexpr int kLastLooks = 1000;

// How long a rank that saw a foreign signature collects the others', to name the odd one.
constexpr std::int64_t kSettleNs = 500'000'000;

// Between two words of a run to other nodes about whom it waits for.
constexpr std::int64_t kTellEveryNs = 20'000'000;

std::uint64_t failure_state(std::uint32_t sequence, Notice::Kind kind) {
  return (static_cast<std::uint64_t>(sequence) << 8) | static_cast<std::uint64_t>(kind);
}

Error recorded(const FailureRecord& record) {
  Error error;
  error.code = static_cast<Code>(record.code.load(std::memory_order_acquire));
  error.culprit = record.culprit.load(std::memory_order_acquire);
  error.message = record.sentence();
  return error;
}

}  // namespace

Run* Engine::find_run(const Channel& channel, std::uint32_t sequence) const {
  for (Run* run : runs_) {
    if (run->channel == &channel && run->sequence == sequence) {
      return run;
    }
  }
  return nullptr;
}

// Tells the group's other ranks: those of this node through our block, the others by notice.
void Engine::tell(Channel& channel, std::uint32_t sequence, Notice::Kind kind, const Error& error) {
  FailureRecord& record = channel.own->failure;
  record.state.store(0, std::memory_order_relaxed);
  record.culprit.store(error.culprit, std::memory_order_release);
  record.code.store(static_cast<std::uint32_t>(error.code), std::memory_order_release);
  const std::size_t length = std::min(error.message.size(), record.text.size() - 1);
  for (std::size_t i = 0; i < length; ++i) {
    record.text[i].store(error.message[i], std::memory_order_release);
  }
  record.text[length].store('\0', std::memory_order_release);
  record.state.store(failure_state(sequence, kind), std::memory_order_release);
  if (kind == Notice::Kind::kRefused) {
    channel.own->refused[sequence % kAnnounceRing].store(
        refused_word(sequence, error.code, error.culprit), std::memory_order_release);
  }
  ring_sleepers(channel);
  const Notice notice{.kind = kind,
                      .group = channel.id(),
                      .sequence = sequence,
                      .culprit = error.culprit,
                      .from = options_.world_rank,
                      .code = error.code,
                      .text = error.message.substr(0, kNoticeTextMax)};
  for (const int rank : channel.world_ranks) {
    const bool local = node_->has(rank);
    const bool gone = std::find(dead_.begin(), dead_.end(), rank) != dead_.end();
    if (rank != options_.world_rank && !local && !gone) {
      transport_to(rank).notify(rank, notice);
      told_.store(true, std::memory_order_relaxed);
    }
  }
  // This rank may never call again: then the driver sees to it that the notices leave.
  if (told_.load(std::memory_order_relaxed) && !stop_.load(std::memory_order_relaxed)) {
    ensure_driver();
  }
}

// A rank that ends after another one's death ends because of it, in whatever group it is missed.
Error Engine::first_cause(const Error& error) const {
  const bool follows = first_death_ && error.culprit >= 0 && error.culprit != options_.world_rank &&
                       error.culprit != first_death_->culprit &&
                       (error.code == Code::kPeerDead || error.code == Code::kAborted);
  if (!follows) {
    return error;
  }
  Error cause = *first_death_;
  cause.message += fmt::format(" (rank {} followed)", error.culprit);
  return cause;
}

void Engine::fail_channel(Channel& channel, const Error& given, bool tell_others) {
  if (channel.failure != nullptr) {
    return;
  }
  const Error error = first_cause(given);
  if (error.code == Code::kPeerDead && !first_death_) {
    first_death_ = error;
  }
  channel.failure = std::make_shared<const Error>(error);
  if (tell_others) {
    const std::uint32_t sequence = channel.finished + 1;
    tell(channel, sequence,
         error.code == Code::kPeerDead ? Notice::Kind::kDead : Notice::Kind::kAborted, error);
  }
  const auto personal = [&](const Run& run) {
    Error own = error;
    own.message =
        fmt::format("{}: {}", describe_run(channel, run.sequence, run.info), error.message);
    return own;
  };
  const std::vector<Run*> runs = runs_;
  for (Run* run : runs) {
    if (run->channel == &channel) {
      fail(*run, personal(*run));
    }
  }
  while (!channel.pending.empty()) {
    Run& run = *channel.pending.front();
    fail(run, personal(run));
  }
  std::erase(blocked_, &channel);
  for (std::size_t i = transfers_.size(); i-- > 0;) {
    if (transfers_[i]->channel == &channel) {
      finish_transfer(*transfers_[i], error);
    }
  }
}

// A refusal concerns one operation: it fails, or will when it begins here.
void Engine::refuse(Channel& channel, std::uint32_t sequence, const Error& error) {
  if (Run* run = find_run(channel, sequence)) {
    fail(*run, error);
    return;
  }
  if (static_cast<std::int32_t>(sequence - channel.finished) > 0) {
    channel.refused.push_back({.sequence = sequence, .error = error});
    if (channel.refused.size() > kActiveMax) {
      channel.refused.pop_front();
    }
  }
}

// A send of ours that was done, since its bytes had left, and that its receiver could not take.
void Engine::refuse_send(Channel& channel, const Notice& notice) {
  const auto& members = channel.world_ranks;
  const auto member = std::find(members.begin(), members.end(), notice.from);
  const Error error{
      .code = Code::kMismatch,
      .culprit = notice.from,
      .message = fmt::format(
          "rank {}: an earlier send to rank {} with tag {} in group '{}' was refused there: rank "
          "{} expected {} bytes. Its bytes had left, so it was reported as done, and this call "
          "fails in its place; it did nothing else (the group stays usable)",
          channel.world_rank(), notice.from, transfer_tag(notice.sequence), channel.name,
          notice.from, notice.peer_info ? notice.peer_info->count : 0)};
  log(LogLevel::kError, "engine", "{}", error.message);
  channel.refused_sends.emplace(static_cast<std::uint32_t>(member - members.begin()), error);
}

// A message of ours that its receiver could not take, as our transport heard after it was sent.
void Engine::refuse_sent(Channel& channel, const Notice& notice) {
  if (is_transfer(notice.sequence)) {
    refuse_send(channel, notice);
    return;
  }
  const std::uint32_t sequence = whole_sequence(notice.sequence, channel.next_sequence);
  Error error{.code = notice.code, .culprit = notice.culprit, .message = notice.text};
  if (const Run* run = find_run(channel, sequence)) {
    if (notice.peer_info->signature == run->info.signature) {
      error.message = fmt::format(
          "{} was refused: {}; what a rank sends to another must be as long as what "
          "that one takes from it (the group stays usable)",
          describe_run(channel, sequence, run->info), notice.text);
    } else {
      error = mismatch_between(channel, sequence,
                               {{.world_rank = options_.world_rank, .info = run->info},
                                {.world_rank = notice.from, .info = *notice.peer_info}});
    }
    tell(channel, sequence, Notice::Kind::kRefused, error);
  }
  refuse(channel, sequence, error);
}

void Engine::settle_mismatch(Run& run, std::int64_t now_ns) {
  std::vector<Side> sides;
  if (!gather_sides(run, &sides) && now_ns - run.mismatch_since_ns < kSettleNs) {
    return;
  }
  Channel& channel = *run.channel;
  const Error error = mismatch_between(channel, run.sequence, sides);
  tell(channel, run.sequence, Notice::Kind::kRefused, error);
  fail(run, error);
}

// Ranks of this node are judged by their pidfd, not by their sockets.
void Engine::suspect_afar(int world_rank, Channel* channel, const Error& error) {
  if (!node_->has(world_rank)) {
    suspect(world_rank, channel, error);
  }
}

void Engine::suspect(int world_rank, Channel* channel, const Error& error) {
  const bool known = std::any_of(suspects_.begin(), suspects_.end(), [&](const Suspect& one) {
    return one.world_rank == world_rank && one.channel == channel;
  });
  if (!known) {
    suspects_.push_back(
        {.world_rank = world_rank, .channel = channel, .since_ns = monotonic_ns(), .error = error});
  }
}

bool Engine::departed(int world_rank) const {
  return std::find(departed_.begin(), departed_.end(), world_rank) != departed_.end();
}

// True when a failure of a message means that its peer is lost: a suspect then, and the run waits
// for the verdict. Of a rank of this node, check_run() and its pidfd give it.
bool Engine::lost(Channel& channel, std::uint32_t peer, Code code) {
  const int world_rank = channel.world_ranks[peer];
  const bool left = departed(world_rank);
  if (code == Code::kPeerDead && !left) {
    suspect_afar(world_rank, nullptr, gone_error(world_rank));
    return true;
  }
  if (code == Code::kAborted || left) {
    suspect_afar(world_rank, &channel, left_error(world_rank));
    return true;
  }
  return false;
}

void Engine::judge_suspects(std::int64_t now_ns) {
  for (std::size_t i = 0; i < suspects_.size();) {
    if (now_ns - suspects_[i].since_ns < kSuspectNs) {
      ++i;
      continue;
    }
    const Suspect one = std::move(suspects_[i]);
    suspects_.erase(suspects_.begin() + static_cast<std::ptrdiff_t>(i));
    if (one.channel == nullptr) {
      declare_dead(one.world_rank, one.error);
    } else {
      fail_channel(*one.channel, one.error, true);
    }
  }
}

void Engine::declare_dead(int world_rank, const Error& error) {
  if (std::find(dead_.begin(), dead_.end(), world_rank) != dead_.end()) {
    return;
  }
  dead_.push_back(world_rank);
  for (Channel* channel : channels_) {
    const auto& members = channel->world_ranks;
    const auto member = std::find(members.begin(), members.end(), world_rank);
    if (member == members.end()) {
      continue;
    }
    const GroupBlock* block = node_->resolve(world_rank, channel->key).block;
    const bool left = block != nullptr && block->state.left.load(std::memory_order_acquire) != 0;
    // A rank that left in good order owes nothing but what somebody waits for now.
    if (!left) {
      fail_channel(*channel, error, true);
    }
  }
}

void Engine::on_notice(const Notice& notice) {
  if (notice.kind == Notice::Kind::kDead && !first_death_) {
    first_death_ =
        Error{.code = Code::kPeerDead, .culprit = notice.culprit, .message = notice.text};
  }
  for (Channel* channel : channels_) {
    if (channel->id() != notice.group) {
      continue;
    }
    if (notice.peer_info) {
      refuse_sent(*channel, notice);
      continue;
    }
    Error error{.code = notice.code, .culprit = notice.culprit, .message = notice.text};
    switch (notice.kind) {
      case Notice::Kind::kRefused:
        refuse(*channel, notice.sequence, error);
        break;
      case Notice::Kind::kDead:
        fail_channel(*channel, error, true);
        break;
      case Notice::Kind::kAborted:
        error.message = fmt::format("rank {} gave up: {}", notice.from, notice.text);
        fail_channel(*channel, error, true);
        break;
      case Notice::Kind::kWaiting:
        note_waiting_elsewhere(*channel, notice);
        break;
      case Notice::Kind::kGoodbye:
        break;
    }
  }
}

// A rank of another node tells whom it waits for. What it told before is over.
void Engine::note_waiting_elsewhere(Channel& channel, const Notice& notice) {
  const auto& members = channel.world_ranks;
  const auto member = std::find(members.begin(), members.end(), notice.from);
  if (member == members.end()) {
    return;
  }
  Channel::Waiting& waiting = channel.waiting[static_cast<std::size_t>(member - members.begin())];
  waiting = {.sequence = notice.sequence, .waits_for = {}};
  const char* at = notice.text.data();
  const char* const end = at + notice.text.size();
  for (int rank = 0; waiting.waits_for.size() < RankState::kWaitsMax;) {
    const auto [next, wrong] = std::from_chars(at, end, rank);
    if (wrong != std::errc()) {
      break;
    }
    waiting.waits_for.push_back(rank);
    at = next == end ? end : next + 1;
  }
}

// Reads what ranks of this node have recorded, also where no collective has met them yet.
void Engine::check_records(Channel& channel) {
  if (!channel.resolved) {
    resolve_peers(channel);
  }
  for (std::size_t i = 0; i < channel.peers.size() && channel.failure == nullptr; ++i) {
    const GroupBlock* block = channel.peers[i].block;
    if (block == nullptr || i == channel.local) {
      continue;
    }
    check_refused(channel, i);
    Channel::Seen& seen = channel.seen_failures[i];
    const std::uint64_t state = block->failure.state.load(std::memory_order_acquire);
    if (state == 0 || state == seen.failure) {
      continue;
    }
    seen.failure = state;
    if (static_cast<Notice::Kind>(state & 0xff) != Notice::Kind::kRefused) {
      fail_channel(channel, recorded(block->failure), true);
    }
  }
}

// Reads which operations a rank of this node refused.
void Engine::check_refused(Channel& channel, std::size_t local) {
  const GroupBlock& block = *channel.peers[local].block;
  for (std::size_t k = 0; k < block.refused.size(); ++k) {
    const std::uint64_t word = block.refused[k].load(std::memory_order_acquire);
    std::uint64_t& seen = channel.seen_failures[local].refused[k];
    if (word == seen) {
      continue;
    }
    seen = word;
    const auto sequence = static_cast<std::uint32_t>(word >> 32);
    const std::uint64_t ours = failure_state(sequence, Notice::Kind::kRefused);
    Error error;
    if (block.failure.state.load(std::memory_order_acquire) == ours) {
      error = recorded(block.failure);
    }
    // Another failure's sentence may have taken the place of this one's.
    if (error.message.empty() || block.failure.state.load(std::memory_order_relaxed) != ours) {
      const int rank = channel.peers[local].world_rank;
      error = Error{
          .code = refused_code(word),
          .culprit = refused_culprit(word),
          .message = fmt::format(
              "rank {}: operation #{} in group '{}' was refused by rank {} ({}), whose "
              "own error says why (the group stays usable)",
              channel.world_rank(), sequence, channel.name, rank, code_name(refused_code(word)))};
    }
    refuse(channel, sequence, error);
  }
}

// Shows in shared memory, and after a while to other nodes, whom this run waits for.
void Engine::note_waiting(Run& run, std::int64_t now_ns) {
  Channel& channel = *run.channel;
  const Wait wait = find_wait(run);
  RankState& state = channel.own->state;
  state.sequence.store(run.sequence, std::memory_order_relaxed);
  state.step.store(wait.step, std::memory_order_relaxed);
  state.set_waits(wait.world_ranks);
  if (!run.noted) {
    state.since_ns.store(static_cast<std::uint64_t>(now_ns), std::memory_order_relaxed);
  }
  state.phase.store(kPhaseWaiting, std::memory_order_release);
  run.noted = true;
  tell_waiting(run, wait, now_ns);
}

// Tells other nodes whom this run waits for: when half its time is over, or somebody else's is, and
// again when that has changed. So every rank can name all who are late.
void Engine::tell_waiting(Run& run, const Wait& wait, std::int64_t now_ns) {
  Channel& channel = *run.channel;
  const std::int64_t half = run.timeout_ms * 500'000;
  const bool late = run.deadline_ns != Deadline::kNever && now_ns >= run.deadline_ns - half;
  const auto waits_too = [&](const Channel::Waiting& other) {
    return other.sequence == run.sequence && !other.waits_for.empty();
  };
  if (!late && std::none_of(channel.waiting.begin(), channel.waiting.end(), waits_too)) {
    return;
  }
  std::vector<int> ranks = wait.world_ranks;
  ranks.resize(std::min(ranks.size(), RankState::kWaitsMax));
  if (ranks.empty() || ranks == run.told || now_ns - run.told_ns < kTellEveryNs) {
    return;
  }
  run.told_ns = now_ns;
  const Notice notice{.kind = Notice::Kind::kWaiting,
                      .group = channel.id(),
                      .sequence = run.sequence,
                      .culprit = -1,
                      .from = options_.world_rank,
                      .code = Code::kTimeout,
                      .text = fmt::format("{}", fmt::join(ranks, " "))};
  for (const int rank : channel.world_ranks) {
    if (rank != options_.world_rank && !node_->has(rank)) {
      transport_to(rank).notify(rank, notice);
    }
  }
  run.told = std::move(ranks);
}

void Engine::time_out(Run& run, std::int64_t now_ns) {
  Channel& channel = *run.channel;
  note_waiting(run, now_ns);
  const Wait wait = find_wait(run);
  const std::vector<int> guilty = find_guilty(channel, *node_, wait, run.sequence);
  std::string state;
  if (guilty.size() == 1 && is_stopped(*node_, guilty.front())) {
    state = " (its process is stopped)";
  }
  const std::string who = guilty.empty() ? std::string("a peer") : describe_ranks(guilty) + state;
  const std::string where = run.state == Run::State::kActive
                                ? fmt::format(" at step {} ({})", wait.step,
                                              describe(run.plan->schedule.steps[wait.step]))
                                : std::string(" before its first step");
  fail_channel(
      channel,
      Error{.code = Code::kTimeout,
            .culprit = guilty.empty() ? -1 : guilty.front(),
            .message = fmt::format("timed out after {} ms waiting for {}{}; operation #{} of "
                                   "the group; `isthmus status` there shows what it does",
                                   run.timeout_ms, who, where, run.sequence)},
      true);
}

void Engine::check_run(Run& run, std::int64_t now_ns) {
  if (run.deadline_ns == Deadline::kNever) {
    run.deadline_ns = Deadline::after_ms(run.timeout_ms).at_ns();
  }
  if (run.mismatch_since_ns != 0) {
    settle_mismatch(run, now_ns);
    return;
  }
  if (now_ns >= run.deadline_ns) {
    time_out(run, now_ns);
    return;
  }
  note_waiting(run, now_ns);
  // A rank of this node that left the group will never come. It may have come, written and left
  // between two looks at the wait, or recorded first why it left.
  if (find_left(run) >= 0) {
    Channel& channel = *run.channel;
    check_records(channel);
    // What it sent before it left may lie in a lane: its word is faster than its messages.
    for (int looks = 0; looks < kLastLooks && poll_transports(); ++looks) {
    }
    const int left = run.state == Run::State::kDone ? -1 : find_left(run);
    if (left >= 0) {
      fail_channel(channel, left_error(left), true);
    }
  }
}

// A rank of this node that the run waits for and that has left the group, -1 none.
int Engine::find_left(const Run& run) const {
  std::vector<int> gone;
  for (const MappedPeer& peer : run.channel->peers) {
    const bool left =
        peer.block != nullptr && peer.block->state.left.load(std::memory_order_acquire) != 0;
    if (left || departed(peer.world_rank)) {
      gone.push_back(peer.world_rank);
    }
  }
  if (gone.empty()) {
    return -1;
  }
  // Looked at after the words that they left: what they did before is seen.
  const Wait wait = find_wait(run);
  for (const int rank : wait.world_ranks) {
    if (std::find(gone.begin(), gone.end(), rank) != gone.end()) {
      return rank;
    }
  }
  return -1;
}

// The slow look at everything that can go wrong. Called about every millisecond of waiting.
void Engine::check(std::int64_t now_ns) {
  // Failing a channel removes its runs: walk copies. What ranks recorded before they died comes
  // first: it names the first cause.
  const std::vector<Channel*> channels = channels_;
  for (Channel* channel : channels) {
    check_records(*channel);
  }
  std::vector<int> dead;
  node_->poll_dead(&dead);
  for (const int rank : dead) {
    forget_life(rank);
    declare_dead(rank, gone_error(rank));
  }
  judge_suspects(now_ns);
  for (Channel* channel : channels) {
    if (!channel->pending.empty()) {
      check_run(*channel->pending.front(), now_ns);
    }
  }
  const std::vector<Run*> runs = runs_;
  for (Run* run : runs) {
    if (std::find(runs_.begin(), runs_.end(), run) != runs_.end()) {
      check_run(*run, now_ns);
    }
  }
  for (std::size_t i = transfers_.size(); i-- > 0;) {
    if (i < transfers_.size()) {
      check_transfer(*transfers_[i], now_ns);
    }
  }
}

}  // namespace isthmus
