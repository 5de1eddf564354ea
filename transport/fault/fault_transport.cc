#include "transport/fault/fault_transport.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>

#include "base/check.h"
#include "base/hash.h"

namespace isthmus {

FaultTransport::FaultTransport(std::unique_ptr<Transport> inner, FaultScript script)
    : inner_(std::move(inner)), random_state_(mix64(script.seed)) {
  for (FaultRule& rule : script.rules) {
    rules_.push_back({std::move(rule), 0, 0});
  }
}

FaultTransport::~FaultTransport() = default;

void FaultTransport::wait_descriptors(std::vector<int>* fds) {
  inner_->wait_descriptors(fds);
  if (held_.empty() && killed_untold_.empty()) {
    return;
  }
  if (!ready_.valid()) {
    const int ready = ::eventfd(1, EFD_CLOEXEC);
    ISTHMUS_CHECK(ready >= 0, "no descriptor is left for the faults");
    ready_ = Fd(ready);
  }
  fds->push_back(ready_.get());
}

// Whether the rule strikes on this occasion; counts the occasion.
bool FaultTransport::hits(RuleState* state, int peer, FaultRule::Side side) {
  const FaultRule& rule = state->rule;
  const bool fits = (rule.peer == FaultRule::kAnyPeer || rule.peer == peer) &&
                    (rule.side == FaultRule::Side::kBoth || rule.side == side);
  if (!fits || state->seen++ < rule.skip || state->hit >= rule.times) {
    return false;
  }
  random_state_ += 0x9e3779b97f4a7c15ULL;
  if (mix64(random_state_) % 1000 >= rule.per_mille) {
    return false;
  }
  if (rule.times != FaultRule::kAlways) {
    ++state->hit;
  }
  count(rule.kind);
  return true;
}

FaultTransport::Plan FaultTransport::plan_post(int peer, bool is_recv) {
  const FaultRule::Side side = is_recv ? FaultRule::Side::kReceives : FaultRule::Side::kSends;
  Plan plan;
  for (RuleState& state : rules_) {
    const FaultRule& rule = state.rule;
    if (rule.kind == FaultRule::Kind::kDropNotice || !hits(&state, peer, side)) {
      continue;
    }
    switch (rule.kind) {
      case FaultRule::Kind::kBusy:
        plan.busy = true;
        return plan;  // the same post comes again: later rules take it then
      case FaultRule::Kind::kFailPost:
        plan.error = &rule.error;
        return plan;
      case FaultRule::Kind::kKillPeer:
        plan.kill = true;
        return plan;
      case FaultRule::Kind::kDelay:
        plan.held = true;
        plan.delay_polls += rule.amount;
        break;
      case FaultRule::Kind::kReorder:
        plan.held = true;
        random_state_ += 0x9e3779b97f4a7c15ULL;
        plan.delay_polls +=
            static_cast<std::uint32_t>(mix64(random_state_) % (std::uint64_t{rule.amount} + 1));
        break;
      case FaultRule::Kind::kFailCompletion:
        plan.fail = true;
        plan.fail_code = rule.error.code;
        break;
      case FaultRule::Kind::kLoseCompletion:
        plan.lose = true;
        break;
      case FaultRule::Kind::kTruncate:
        plan.shorten += rule.amount;
        break;
      case FaultRule::Kind::kDropNotice:
        break;
    }
  }
  return plan;
}

std::uint32_t FaultTransport::take_slot() {
  if (free_slots_.empty()) {
    slots_.emplace_back();
    return static_cast<std::uint32_t>(slots_.size() - 1);
  }
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  return index;
}

template <typename Span>
// NOLINTNEXTLINE(readability-function-size): an Endpoint's own parameters, and which it is
Result<Endpoint::Post> FaultTransport::post(Endpoint& inner, int peer, bool is_recv, const Tag& tag,
                                            const OperationInfo& info, Span data, Token token) {
  const Plan plan = plan_post(peer, is_recv);
  if (plan.busy) {
    return Endpoint::Post::kBusy;
  }
  if (plan.error != nullptr) {
    return *plan.error;
  }
  if (plan.kill) {
    kill_peer(peer);
  }
  if (killed_.contains(peer)) {
    return Error{.code = Code::kPeerDead,
                 .culprit = peer,
                 .message = fmt::format("cannot {} {} bytes: rank {} is gone (injected)",
                                        is_recv ? "receive" : "send", data.size(), peer)};
  }
  const std::uint32_t index = take_slot();
  const Token mine{this, index};
  const Span shorter = data.first(data.size() - std::min(plan.shorten, data.size()));
  Result<Endpoint::Post> answer = [&] {
    if constexpr (std::is_same_v<Span, std::span<const std::byte>>) {
      return inner.post_send(tag, info, shorter, mine);
    } else {
      return inner.post_recv(tag, info, shorter, mine);
    }
  }();
  if (!answer.ok() || *answer == Endpoint::Post::kBusy) {
    free_slots_.push_back(index);
    return answer;
  }
  const Slot slot{true, is_recv, peer, tag.operation, data.size(), token, plan};
  if (*answer == Endpoint::Post::kPosted) {
    slots_[index] = slot;
    return answer;
  }
  free_slots_.push_back(index);
  if (!plan.held && !plan.fail && !plan.lose) {
    return answer;
  }
  Completion completion;
  completion.is_recv = is_recv;
  completion.bytes = shorter.size();
  finish(slot, completion);
  return Endpoint::Post::kPosted;
}

// Files a completion of the wrapped transport for when the caller may see it.
void FaultTransport::finish(const Slot& slot, Completion completion) {
  if (slot.plan.lose) {
    return;
  }
  completion.token = slot.token;
  if (slot.plan.fail && !completion.failed) {
    completion.failed = true;
    completion.code = slot.plan.fail_code;
    completion.bytes = 0;
  }
  held_.push_back({polls_ + slot.plan.delay_polls, slot.peer, slot.operation, completion});
}

void FaultTransport::cancel(Endpoint& inner, int peer, std::uint64_t operation) {
  inner.cancel(operation);
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].live && slots_[i].peer == peer && slots_[i].operation == operation) {
      slots_[i].live = false;
      free_slots_.push_back(i);
    }
  }
  std::erase_if(held_,
                [&](const Held& each) { return each.peer == peer && each.operation == operation; });
}

void FaultTransport::kill_peer(int peer) {
  if (!killed_.insert(peer).second) {
    return;
  }
  killed_untold_.push_back(peer);
  Endpoint& inner = inner_->endpoint(peer);
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].live && slots_[i].peer == peer) {
      inner.cancel(slots_[i].operation);
      slots_[i].live = false;
      free_slots_.push_back(i);
      Completion completion;
      completion.is_recv = slots_[i].is_recv;
      completion.failed = true;
      completion.code = Code::kPeerDead;
      finish(slots_[i], completion);
    }
  }
}

Endpoint& FaultTransport::endpoint(int peer) {
  std::unique_ptr<FaultEndpoint>& slot = endpoints_[peer];
  if (!slot) {
    slot = std::make_unique<FaultEndpoint>(this, &inner_->endpoint(peer), peer);
  }
  return *slot;
}

bool FaultTransport::poll(Events* events) {
  bool worked = inner_->poll(&scratch_) || !held_.empty() || !killed_untold_.empty();
  ++polls_;
  for (const Completion& completion : scratch_.completions) {
    ISTHMUS_CHECK(completion.token.owner == this && completion.token.step < slots_.size() &&
                      slots_[completion.token.step].live,
                  "the wrapped transport completed what was not posted");
    Slot& slot = slots_[completion.token.step];
    slot.live = false;
    free_slots_.push_back(completion.token.step);
    finish(slot, completion);
  }
  for (Notice& notice : scratch_.notices) {
    if (!killed_.contains(notice.from) && !drops_notice(notice.from, FaultRule::Side::kReceives)) {
      events->notices.push_back(std::move(notice));
    }
  }
  for (const int peer : scratch_.dead) {
    if (!killed_.contains(peer)) {
      events->dead.push_back(peer);
    }
  }
  scratch_.clear();
  for (const int peer : killed_untold_) {
    events->dead.push_back(peer);
  }
  killed_untold_.clear();
  std::erase_if(held_, [&](const Held& each) {
    const bool due = each.due_poll <= polls_;
    if (due) {
      events->completions.push_back(each.completion);
    }
    return due;
  });
  return worked;
}

bool FaultTransport::drops_notice(int peer, FaultRule::Side side) {
  bool drops = false;
  for (RuleState& state : rules_) {
    if (state.rule.kind == FaultRule::Kind::kDropNotice && !drops) {
      drops = hits(&state, peer, side);
    }
  }
  return drops;
}

void FaultTransport::notify(int peer, const Notice& notice) {
  if (!killed_.contains(peer) && !drops_notice(peer, FaultRule::Side::kSends)) {
    inner_->notify(peer, notice);
  }
}

void FaultTransport::shutdown() {
  inner_->shutdown();
  slots_.clear();
  free_slots_.clear();
  held_.clear();
  killed_untold_.clear();
}

Result<Endpoint::Post> FaultEndpoint::post_send(const Tag& tag, const OperationInfo& info,
                                                std::span<const std::byte> data, Token token) {
  return transport_->post(*inner_, peer_, false, tag, info, data, token);
}

Result<Endpoint::Post> FaultEndpoint::post_recv(const Tag& tag, const OperationInfo& info,
                                                std::span<std::byte> data, Token token) {
  return transport_->post(*inner_, peer_, true, tag, info, data, token);
}

bool FaultEndpoint::offers(const Tag& tag) const {
  return inner_->offers(tag);
}

void FaultEndpoint::cancel(std::uint64_t operation) {
  transport_->cancel(*inner_, peer_, operation);
}

}  // namespace isthmus
