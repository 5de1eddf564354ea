#include "schedule/engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/prefetch.h"
#include "schedule/diagnosis.h"

namespace isthmus {
namespace {

// Looks of a lone synchronous run at its peers before the general loop takes over. Crowded ranks
// look less: the peer may need this core.
constexpr int kLooksAlone = 4000;
constexpr int kLooksCrowded = 4;

// Between two questions to a waiting caller whether it wants to go on waiting.
constexpr std::int64_t kAskEveryNs = 100'000'000;

// An idle pass polls transports this rarely when no run uses them: only notices can arrive then.
constexpr std::uint32_t kIdlePollMask = 255;

std::size_t stage_bytes(const Run& run) {
  return std::size_t{run.plan->schedule.stage_units} * run.geometry.unit_bytes();
}

bool sends_messages(const Schedule& schedule) {
  return !schedule.in_order;
}

}  // namespace

Engine::Engine(const Options& options, ShmNode* node, std::vector<Transport*> transports)
    : options_(options), node_(node), transports_(std::move(transports)) {}

Engine::~Engine() {
  shutdown(Error{.code = Code::kAborted, .message = "the world was destroyed"});
}

void Engine::add_channel(Channel* channel) {
  const BatonGuard guard(baton_);
  channels_.push_back(channel);
}

void Engine::remove_channel(Channel* channel, const Error& why) {
  const BatonGuard guard(baton_);
  fail_channel(*channel, why, false);
  // A group that could not be made completely has no block yet.
  if (channel->own != nullptr) {
    channel->own->state.left.store(1, std::memory_order_release);
    ring_sleepers(*channel);
    Left left{.own = channel->own,
              .key = channel->key,
              .peers = {},
              .retired = std::move(channel->retired)};
    for (const MappedPeer& peer : channel->peers) {
      left.peers.push_back(peer.world_rank);
    }
    // A peer that never joined may still come and look for this rank's word that it left.
    if (channel->resolved) {
      left_.push_back(std::move(left));
    }
  }
  std::erase(channels_, channel);
  std::erase(blocked_, channel);
  std::erase_if(suspects_, [&](const Suspect& one) { return one.channel == channel; });
}

void Engine::sweep_left() {
  std::erase_if(left_, [&](const Left& left) {
    for (const int rank : left.peers) {
      const GroupBlock* block = node_->resolve(rank, left.key).block;
      // A block that is gone was freed by its owner, which had left.
      if (rank != options_.world_rank && block != nullptr &&
          block->state.left.load(std::memory_order_acquire) == 0) {
        return false;
      }
    }
    for (const Channel::Retired& retired : left.retired) {
      node_->own().release(retired.lease);
    }
    node_->own().free_group(left.own);
    return true;
  });
}

Status Engine::admit(Channel& channel) const {
  if (over_ != nullptr) [[unlikely]] {
    return *over_;
  }
  if (channel.failure != nullptr) [[unlikely]] {
    return *channel.failure;
  }
  return {};
}

// Numbers a run, unless its group is over.
Status Engine::issue(Run& run) {
  Channel& channel = *run.channel;
  ISTHMUS_TRY(admit(channel));
  run.sequence = channel.next_sequence++;
  channel.issued.store(channel.issued.load(std::memory_order_relaxed) + 1,
                       std::memory_order_relaxed);
  return {};
}

Status Engine::execute(Run& run) {
  ISTHMUS_TRY(issue(run));
  if (run.channel->pending.empty() && begin(run)) {
    spin_alone(run);
  }
  if (run.state == Run::State::kPending) {
    enqueue(run);
  }
  if (run.state != Run::State::kDone) {
    const auto done = [&run] { return run.state == Run::State::kDone; };
    if (drive(done, Deadline(), run.keep_waiting) == Ended::kInterrupted) {
      interrupt(run);
    }
  }
  return run.failed ? Status(std::move(*run.error)) : Status();
}

// The fast path of a synchronous operation: nothing else is active, so nothing else is looked at.
void Engine::spin_alone(Run& run) {
  if (run.state == Run::State::kDone || runs_.size() != 1 || !run.plan->schedule.in_order) {
    return;
  }
  const int looks = options_.crowded ? kLooksCrowded : kLooksAlone;
  for (int i = 0; i < looks && run.state == Run::State::kActive; ++i) {
    if (advance(run)) {
      i = 0;
    } else {
      cpu_relax();
    }
  }
}

Status Engine::start(std::unique_ptr<Run> owned) {
  Run& run = *owned;
  Channel& channel = *run.channel;
  ISTHMUS_TRY(issue(run));
  run.deadline_ns = Deadline::after_ms(run.timeout_ms).at_ns();
  run.work->set_identity(run.sequence, channel.key, Lanes::current_depth());
  lanes_.issued(run.work);
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  owned_.push_back(std::move(owned));
  if (!channel.pending.empty() || !begin(run)) {
    enqueue(run);
  } else if (run.state == Run::State::kActive) {
    advance(run);
  }
  if (outstanding_.load(std::memory_order_relaxed) != 0) {
    ensure_driver();
    wake_driver();
  }
  return {};
}

// Drives until `done` says so, or the caller wants to wait no longer.
template <typename Done>
Engine::Ended Engine::drive(const Done& done, Deadline deadline, const KeepWaiting* keep_waiting) {
  callers_.fetch_add(1, std::memory_order_relaxed);
  std::int64_t asked_ns = 0;
  Ended ended = Ended::kDone;
  Idle state;
  while (!done() && ended == Ended::kDone) {
    if (progress()) {
      moved(state);
    } else {
      idle(state);
    }
    const std::int64_t now = state.checked_ns;
    if (now == 0) {
      continue;
    }
    asked_ns = asked_ns == 0 ? now : asked_ns;
    if (deadline.passed(now)) {
      ended = Ended::kLate;
    } else if (keep_waiting != nullptr && now - asked_ns >= kAskEveryNs) {
      asked_ns = now;
      // What is asked may take locks of the caller's, or time.
      baton_.release();
      const bool go_on = (*keep_waiting)();
      baton_.acquire();
      ended = go_on ? Ended::kDone : Ended::kInterrupted;
    }
  }
  callers_.fetch_sub(1, std::memory_order_relaxed);
  wake_driver();
  return done() ? Ended::kDone : ended;
}

// Ends the group of a run whose caller waits no longer: the peers may hold half of it.
void Engine::interrupt(Run& run) {
  Channel& channel = *run.channel;
  fail_channel(
      channel,
      Error{.code = Code::kAborted,
            .culprit = channel.world_rank(),
            .message = fmt::format("rank {} was interrupted while it waited in {}",
                                   channel.world_rank(), describe_call(run.sequence, run.info))},
      true);
}

Status Engine::wait(Work& work, Deadline deadline, const KeepWaiting& keep_waiting) {
  const BatonGuard guard(baton_);
  switch (
      drive([&work] { return work.done(); }, deadline, keep_waiting ? &keep_waiting : nullptr)) {
    case Ended::kDone:
      break;
    case Ended::kLate:
      return Error{.code = Code::kTimeout, .message = "the wait timed out; the operation goes on"};
    case Ended::kInterrupted:
      return Error{.code = Code::kAborted,
                   .message = "the wait was interrupted; the operation goes on"};
  }
  return work.outcome();
}

void Engine::enqueue(Run& run) {
  Channel& channel = *run.channel;
  if (channel.pending.empty()) {
    blocked_.push_back(&channel);
  }
  channel.pending.push_back(&run);
}

bool Engine::resolve_peers(Channel& channel) {
  bool all = true;
  for (MappedPeer& peer : channel.peers) {
    if (peer.block == nullptr) {
      peer = node_->resolve(peer.world_rank, channel.key);
      all = all && peer.block != nullptr;
    }
  }
  channel.resolved = all;
  return all;
}

// Whether every local peer has finished the operation, as far as was heard: what peers say they
// have finished comes with their announcements, and only with these.
bool Engine::peers_reached(Channel& channel, std::uint32_t sequence) {
  const auto reached = [&](std::uint32_t finished) {
    return static_cast<std::int32_t>(finished - sequence) >= 0;
  };
  if (reached(channel.peers_finished)) {
    return true;
  }
  std::uint32_t least = channel.next_sequence;
  for (std::size_t i = 0; i < channel.peers.size(); ++i) {
    const std::uint32_t theirs = channel.peers[i].finished;
    if (i != channel.local && static_cast<std::int32_t>(theirs - least) < 0) {
      least = theirs;
    }
  }
  channel.peers_finished = least;
  return reached(least);
}

// Hears the peers' words now, which costs a cache miss each.
void Engine::ask_finished(Channel& channel) {
  for (std::size_t i = 0; i < channel.peers.size(); ++i) {
    if (i != channel.local) {
      MappedPeer& peer = channel.peers[i];
      peer.finished = peer.block->state.finished.load(std::memory_order_acquire);
    }
  }
}

bool Engine::lease_stage(Run& run) {
  Channel& channel = *run.channel;
  const std::size_t bytes = stage_bytes(run);
  const auto reclaim = [&](Channel& other) {
    std::erase_if(other.retired, [&](const Channel::Retired& retired) {
      const bool over = peers_reached(other, retired.sequence);
      if (over) {
        node_->own().release(retired.lease);
      }
      return over;
    });
  };
  reclaim(channel);
  run.lease = node_->own().lease(bytes, !options_.crowded);
  if (!run.lease) {
    // Slow path: ask every group's peers how far they are.
    for (Channel* other : channels_) {
      if (other->resolved && !other->retired.empty()) {
        ask_finished(*other);
        reclaim(*other);
      }
    }
    run.lease = node_->own().lease(bytes, !options_.crowded);
  }
  return run.lease.has_value();
}

// Makes a run active, or leaves it pending when a peer or memory is not ready. False when pending.
bool Engine::begin(Run& run) {
  Channel& channel = *run.channel;
  const Schedule& schedule = run.plan->schedule;
  if (run.sequence - channel.finished > kActiveMax) {
    return false;
  }
  if (!channel.resolved && !resolve_peers(channel)) {
    return false;
  }
  const std::uint32_t ahead_max = schedule.slot_units != 0 ? kSlotRing : kAnnounceRing;
  if (!peers_reached(channel, run.sequence - ahead_max)) {
    ask_finished(channel);
    if (!peers_reached(channel, run.sequence - ahead_max)) {
      return false;
    }
  }
  const bool stages = schedule.stage_units != 0;
  const bool fits = !stages || stage_bytes(run) <= node_->own().stage_bytes();
  if (stages && fits) {
    if (!lease_stage(run)) {
      return false;
    }
    run.stage[channel.local] = node_->own().stage() + run.lease->offset;
  }
  channel.own->infos[run.sequence % kAnnounceRing] = run.info;
  bool has_scratch = true;
  if (schedule.scratch_units != 0) {
    run.scratch = scratch_.take(scratch_bytes(run));
    has_scratch = run.scratch.memory != nullptr;
  }
  run.state = Run::State::kActive;
  const auto place = std::find_if(runs_.begin(), runs_.end(), [&](const Run* other) {
    return other->info.priority > run.info.priority;
  });
  runs_.insert(place, &run);
  if (sends_messages(schedule)) {
    ++messaging_;
    prepare_dataflow(run);
  }
  if (!fits || !has_scratch) [[unlikely]] {
    // The part of another rank may fit.
    const Error error = fits ? scratch_error(run, scratch_bytes(run))
                             : staging_error(run, stage_bytes(run), node_->own().stage_bytes());
    tell(channel, run.sequence, Notice::Kind::kRefused, error);
    fail(run, error);
    return true;
  }
  if (!channel.refused.empty()) [[unlikely]] {
    for (const Channel::Refusal& refusal : channel.refused) {
      if (refusal.sequence == run.sequence) {
        fail(run, refusal.error);
        return true;
      }
    }
  }
  return true;
}

bool Engine::begin_pending() {
  bool moved = false;
  for (std::size_t i = 0; i < blocked_.size();) {
    Channel& channel = *blocked_[i];
    while (!channel.pending.empty() && begin(*channel.pending.front())) {
      channel.pending.pop_front();
      moved = true;
    }
    if (channel.pending.empty()) {
      blocked_.erase(blocked_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return moved;
}

bool Engine::progress() {
  bool moved = false;
  graveyard_.clear();
  transfer_graveyard_.clear();
  if (!blocked_.empty()) {
    moved = begin_pending();
  }
  // A run that ends takes itself out of runs_.
  for (std::size_t i = 0; i < runs_.size();) {
    Run* run = runs_[i];
    moved = advance(*run) || moved;
    if (i < runs_.size() && runs_[i] == run) {
      ++i;
    }
  }
  if (messaging_ != 0 || (++passes_ & kIdlePollMask) == 0) {
    moved = poll_transports() || moved;
    moved = (!transfers_.empty() && post_transfers()) || moved;
  }
  return moved;
}

bool Engine::poll_transports() {
  bool moved = false;
  for (Transport* transport : transports_) {
    moved = transport->poll(&events_) || moved;
  }
  if (events_.empty()) {
    return moved;
  }
  // Who said goodbye has left in good order: known before the posts that fail with it are handled.
  for (const Notice& notice : events_.notices) {
    if (notice.kind == Notice::Kind::kGoodbye) {
      departed_.push_back(notice.from);
    }
  }
  // Handling may fail runs, which cancels posts, but never polls: the lists are stable.
  for (const Completion& completion : events_.completions) {
    handle(completion);
  }
  for (const Notice& notice : events_.notices) {
    on_notice(notice);
  }
  for (const int rank : events_.dead) {
    suspect_afar(rank, nullptr, gone_error(rank));
  }
  events_.clear();
  return true;
}

void Engine::retire(Run& run) {
  if (run.lease) {
    run.channel->retired.push_back({.lease = *run.lease, .sequence = run.sequence});
    run.lease.reset();
  }
}

// Bookkeeping at the end of a run, however it ended.
void Engine::finish(Run& run) {
  Channel& channel = *run.channel;
  const bool was_active = run.state == Run::State::kActive;
  run.state = Run::State::kDone;
  if (was_active) {
    runs_.erase(std::find(runs_.begin(), runs_.end(), &run));
    messaging_ -= sends_messages(run.plan->schedule) ? 1U : 0U;
  } else {
    std::erase(channel.pending, &run);
  }
  retire(run);
  if (run.scratch.memory != nullptr) {
    scratch_.give(std::move(run.scratch));
  }
  scratch_.give(std::move(run.operand));
  if (run.sequence - channel.finished <= kActiveMax) {
    channel.finished_above |= 1ULL << (run.sequence - channel.finished - 1);
    while ((channel.finished_above & 1) != 0) {
      channel.finished_above >>= 1;
      ++channel.finished;
    }
  }
  channel.own->state.finished.store(channel.finished, std::memory_order_release);
  if (run.noted) {
    channel.own->state.set_waits({});
    channel.own->state.phase.store(run.failed ? kPhaseFailed : kPhaseOutside,
                                   std::memory_order_release);
  }
  if (run.work != nullptr) {
    finish_work(run);
  }
}

void Engine::finish_work(Run& run) {
  run.work->finish(std::move(run.error));
  lanes_.done(run.work);
  outstanding_.fetch_sub(1, std::memory_order_relaxed);
  // The caller up the stack still looks at the run: it is freed by the next progress().
  const auto found =
      std::find_if(owned_.begin(), owned_.end(),
                   [&](const std::unique_ptr<Run>& owned) { return owned.get() == &run; });
  graveyard_.push_back(std::move(*found));
  owned_.erase(found);
  if (node_->own().header().bell.sleeping.load(std::memory_order_relaxed) != 0) {
    node_->ring_self();
  }
}

void Engine::complete(Run& run) {
  Channel& channel = *run.channel;
  // The next operation writes these lines, which peers have just read.
  const std::uint32_t next = run.sequence + 1;
  prefetch_for_write(&channel.own->announcements[next % kAnnounceRing], kCacheLine);
  if (run.plan->schedule.slot_units != 0) {
    prefetch_for_write(&channel.own->slots[next % kSlotRing],
                       std::min(run.geometry.total_bytes(), kSlotBytes));
  }
  finish(run);
}

void Engine::fail(Run& run, Error error) {
  Channel& channel = *run.channel;
  if (run.state == Run::State::kActive && sends_messages(run.plan->schedule)) {
    const std::uint64_t operation = make_operation(channel.id(), run.sequence, false);
    for (Endpoint* lane : channel.endpoints) {
      if (lane != nullptr) {
        lane->cancel(operation);
      }
    }
  }
  run.failed = true;
  run.error = std::move(error);
  finish(run);
}

void Engine::shutdown(const Error& why) {
  stop_.store(true, std::memory_order_relaxed);
  {
    const BatonGuard guard(baton_);
    graveyard_.clear();
    transfer_graveyard_.clear();
    if (over_ == nullptr) {
      over_ = std::make_shared<const Error>(why);
      for (Channel* channel : channels_) {
        fail_channel(*channel, why, false);
        if (channel->own != nullptr) {
          channel->own->state.left.store(1, std::memory_order_release);
          ring_sleepers(*channel);
        }
      }
      for (Transport* transport : transports_) {
        transport->shutdown();
      }
    }
  }
  wake_driver();
  if (driver_.joinable() && driver_.get_id() != std::this_thread::get_id()) {
    driver_.join();
  }
  lanes_.stop();
}

}  // namespace isthmus
