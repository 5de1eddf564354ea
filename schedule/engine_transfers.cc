// Point-to-point transfers and completions.

#include <algorithm>

#include <fmt/format.h>

#include "schedule/diagnosis.h"
#include "schedule/engine.h"

namespace isthmus {
namespace {

// Token::step of a transfer; steps of schedules are below Builder::kStepsMax.
constexpr std::uint32_t kTransferStep = 0xffffffffU;

bool is_bound(const Engine::Transfer& transfer) {
  return transfer.peer != Engine::Transfer::kAnySource;
}

Error error_of(const Completion& failed) {
  return {.code = failed.code, .culprit = -1, .message = std::string(code_name(failed.code))};
}

std::string describe_peer(const Engine::Transfer& transfer) {
  return is_bound(transfer) ? fmt::format("rank {}", transfer.channel->world_ranks[transfer.peer])
                            : fmt::format("any rank with tag {}", transfer.user_tag);
}

std::string describe_transfer(const Engine::Transfer& transfer) {
  const std::size_t bytes = transfer.is_recv ? transfer.into.size() : transfer.data.size();
  return fmt::format("rank {}: {} of {} bytes {} {} in group '{}'", transfer.channel->world_rank(),
                     transfer.is_recv ? "recv" : "send", bytes, transfer.is_recv ? "from" : "to",
                     describe_peer(transfer), transfer.channel->name);
}

}  // namespace

Status Engine::admit_transfer(Channel& channel, std::uint32_t peer) const {
  ISTHMUS_TRY(admit(channel));
  if (!channel.refused_sends.empty()) [[unlikely]] {
    if (auto refusal = channel.refused_sends.extract(peer)) {
      return std::move(refusal.mapped());
    }
  }
  return {};
}

void Engine::start_transfer(std::unique_ptr<Transfer> transfer) {
  if (is_bound(*transfer)) {
    bind(*transfer, transfer->peer);
  }
  transfer->deadline_ns = Deadline::after_ms(transfer->timeout_ms).at_ns();
  transfer->work->set_identity(0, transfer->channel->key, Lanes::current_depth());
  lanes_.issued(transfer->work);
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  ++messaging_;
  transfers_.push_back(std::move(transfer));
  post_transfers();
  if (outstanding_.load(std::memory_order_relaxed) != 0) {
    ensure_driver();
    wake_driver();
  }
}

// Takes the next number of its tag and peer.
void Engine::bind(Transfer& transfer, std::uint32_t peer) {
  transfer.peer = peer;
  transfer.tag.message = transfer.channel->messages_of(transfer.user_tag, peer, transfer.is_recv)++;
}

// Binds a receive from any rank to one whose next message has come, or was announced. Ranks take
// turns: none is kept waiting by another that sends all the time.
bool Engine::find_source(Transfer& transfer) {
  Channel& channel = *transfer.channel;
  const auto ranks = static_cast<std::uint32_t>(channel.world_ranks.size());
  for (std::uint32_t i = 0; i < ranks; ++i) {
    const std::uint32_t peer = (channel.any_source_from + i) % ranks;
    if (peer == channel.rank) {
      continue;
    }
    Tag tag = transfer.tag;
    tag.message = channel.messages_of(transfer.user_tag, peer, true);
    if (endpoint(channel, peer).offers(tag)) {
      bind(transfer, peer);
      channel.any_source_from = (peer + 1) % ranks;
      return true;
    }
  }
  return false;
}

bool Engine::post_transfers() {
  bool moved = false;
  // Walked by index: a transfer that ends takes itself out.
  for (std::size_t i = 0; i < transfers_.size();) {
    Transfer& transfer = *transfers_[i];
    if (transfer.posted || transfer.lost || (!is_bound(transfer) && !find_source(transfer))) {
      ++i;
      continue;
    }
    Endpoint& lane = endpoint(*transfer.channel, transfer.peer);
    const Token token{.owner = &transfer, .step = kTransferStep};
    const Result<Endpoint::Post> posted =
        transfer.is_recv ? lane.post_recv(transfer.tag, transfer.info, transfer.into, token)
                         : lane.post_send(transfer.tag, transfer.info, transfer.data, token);
    if (!posted.ok()) {
      const Code code = posted.error().code;
      if (code == Code::kPeerDead || code == Code::kAborted) {
        lose_transfer(transfer, code);
        ++i;
      } else {
        finish_transfer(transfer, posted.error());
      }
      moved = true;
      continue;
    }
    if (*posted == Endpoint::Post::kDone) {
      finish_transfer(transfer, std::nullopt);
      moved = true;
      continue;
    }
    moved = moved || *posted == Endpoint::Post::kPosted;
    transfer.posted = *posted == Endpoint::Post::kPosted;
    ++i;
  }
  return moved;
}

void Engine::finish_transfer(Transfer& transfer, std::optional<Error> error) {
  if (error) {
    if (transfer.posted) {
      endpoint(*transfer.channel, transfer.peer).cancel(transfer.tag.operation);
    }
    error->message = fmt::format("{}: {}", describe_transfer(transfer), error->message);
  }
  if (transfer.is_recv && !error) {
    transfer.work->set_source(static_cast<int>(transfer.peer));
  }
  transfer.done = true;
  transfer.work->finish(std::move(error));
  lanes_.done(transfer.work);
  outstanding_.fetch_sub(1, std::memory_order_relaxed);
  --messaging_;
  // Completions of the same batch may still name it: freed by the next pass.
  const auto found = std::find_if(transfers_.begin(), transfers_.end(),
                                  [&](const auto& owned) { return owned.get() == &transfer; });
  transfer_graveyard_.push_back(std::move(*found));
  transfers_.erase(found);
}

void Engine::time_out_transfer(Transfer& transfer) {
  Channel& channel = *transfer.channel;
  const Error error{
      .code = Code::kTimeout,
      .culprit = is_bound(transfer) ? channel.world_ranks[transfer.peer] : -1,
      .message = fmt::format("timed out after {} ms waiting for {}; `isthmus status` there shows "
                             "what it does",
                             transfer.timeout_ms, describe_peer(transfer))};
  finish_transfer(transfer, error);
  fail_channel(channel, error, true);
}

// Its peer is gone or has left. It may only have fallen with another: the first cause gets a moment
// to be heard.
void Engine::lose_transfer(Transfer& transfer, Code code) {
  const int peer = transfer.channel->world_ranks[transfer.peer];
  const bool left = code == Code::kAborted || departed(peer);
  transfer.lost = left ? left_error(peer) : gone_error(peer);
  transfer.lost_ns = monotonic_ns();
}

void Engine::check_transfer(Transfer& transfer, std::int64_t now_ns) {
  if (transfer.lost && (first_death_ || now_ns - transfer.lost_ns >= kSuspectNs)) {
    finish_transfer(transfer, first_cause(*transfer.lost));
  } else if (now_ns >= transfer.deadline_ns) {
    time_out_transfer(transfer);
  }
}

// The end of a message of our own, from outside of the schedules.
void Engine::handle_transfer(const Completion& completion) {
  Transfer& transfer = *static_cast<Transfer*>(completion.token.owner);
  if (transfer.done) {
    return;
  }
  transfer.posted = false;
  if (!completion.failed) {
    finish_transfer(transfer, std::nullopt);
    return;
  }
  if (completion.code == Code::kAborted || completion.code == Code::kPeerDead) {
    lose_transfer(transfer, completion.code);
    return;
  }
  const int peer = transfer.channel->world_ranks[transfer.peer];
  Error error = error_of(completion);
  if (completion.code == Code::kMismatch) {
    error.message = fmt::format("sizes differ: {} bytes here, {} bytes on rank {}",
                                transfer.is_recv ? transfer.into.size() : transfer.data.size(),
                                completion.peer_info.count, peer);
  }
  finish_transfer(transfer, error);
}

void Engine::handle(const Completion& completion) {
  if (completion.token.step == kTransferStep) {
    handle_transfer(completion);
    return;
  }
  Run& run = *static_cast<Run*>(completion.token.owner);
  const std::uint32_t index = completion.token.step;
  if (run.state != Run::State::kActive || !run.posted[index]) {
    return;
  }
  Channel& channel = *run.channel;
  const Step& step = run.plan->schedule.steps[index];
  const bool other_operation =
      completion.is_recv && completion.peer_info.signature != run.info.signature;
  if ((completion.failed && completion.code == Code::kMismatch) ||
      (!completion.failed && other_operation)) {
    const Error error =
        completion.peer_info.signature == run.info.signature
            ? lengths_error(run, step, length(run, step), completion.peer_bytes)
            : mismatch_between(
                  channel, run.sequence,
                  {{.world_rank = channel.world_rank(), .info = run.info},
                   {.world_rank = channel.world_ranks[step.peer], .info = completion.peer_info}});
    tell(channel, run.sequence, Notice::Kind::kRefused, error);
    fail(run, error);
    return;
  }
  if (completion.failed) {
    // The step stays posted: so the run still names whom it waits for.
    if (lost(channel, step.peer, completion.code)) {
      return;
    }
    fail_channel(channel, describe_failure(run, index, error_of(completion)), true);
    return;
  }
  run.posted[index] = false;
  complete_step(run, index);
}

}  // namespace isthmus
