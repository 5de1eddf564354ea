#include "transport/shm/shm_lane.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/log.h"

namespace isthmus::shm {
namespace {

// What one post may write itself, so that posting stays short.
constexpr std::size_t kInlineBudget = std::size_t{64} << 10;
// What one pump() may read and write on one lane: compute and other lanes get their turn.
constexpr std::size_t kPumpBudget = std::size_t{1} << 20;
constexpr std::size_t kNoBudget = std::numeric_limits<std::size_t>::max();

}  // namespace

ShmLane::ShmLane(LaneShared* shared, int peer, const ShmNode::LanePeer& places)
    : shared_(shared),
      peer_(peer),
      places_(places),
      chunk_bytes_(places.chunk_bytes),
      writer_(places.out, places.in),
      reader_(places.in, places.out) {}

Error ShmLane::tag_in_use(const Tag& tag, const char* direction) const {
  return {.code = Code::kInvalidArgument,
          .message = fmt::format(
              "Message {} of operation {:#x} is already being {} rank {}: a tag is used once while "
              "it is in flight.",
              tag.message, tag.operation, direction, peer_)};
}

Outgoing* ShmLane::add_send(const Tag& tag, Outgoing::State state, std::size_t bytes) {
  Outgoing* out = shared_->outgoing.take();
  out->tag = tag;
  out->state = state;
  out->bytes = bytes;
  outgoing_.insert(out);
  return out;
}

bool ShmLane::within_quota(std::size_t bytes) {
  const std::uint64_t wanted = eager_sent_ + eager_cost(bytes);
  if (wanted - peer_freed_ <= kEagerQuota) {
    return true;
  }
  const std::uint64_t freed = places_.in.header->freed.load(std::memory_order_acquire);
  // A count that cannot be is as good as none: the message then goes as a large one does.
  if (freed - peer_freed_ <= eager_sent_ - peer_freed_) {
    peer_freed_ = freed;
  }
  return wanted - peer_freed_ <= kEagerQuota;
}

Result<Endpoint::Post> ShmLane::post_send(const Tag& tag, const OperationInfo& info,
                                          std::span<const std::byte> data, Token token) {
  if (over_) {
    return *over_;
  }
  if (sends_ >= kPostsMax) {
    return Post::kBusy;
  }
  if (data.size() > kMessageBytesMax) {
    return Error{
        .code = Code::kInvalidArgument,
        .message = fmt::format("A message of {} bytes to rank {} is beyond the bound of {}.",
                               data.size(), peer_, kMessageBytesMax)};
  }
  cancelled_.remove(tag.operation);
  Outgoing* out = outgoing_.size() == 0 ? nullptr : outgoing_.find(tag);
  if (out != nullptr && out->state != Outgoing::State::kCreditOnly) {
    return tag_in_use(tag, "sent to");
  }
  const bool credited = out != nullptr;
  const bool eager = !credited && data.size() <= kEagerBytes && within_quota(data.size());
  if (eager) {
    eager_sent_ += eager_cost(data.size());
    if (!has_output() && write_eager(tag, info, data)) {
      ring_peer();
      return Post::kDone;
    }
  }
  if (out == nullptr) {
    out = add_send(tag, eager ? Outgoing::State::kEager : Outgoing::State::kRequested, 0);
  }
  const FrameBody credit{.info = out->info, .message_bytes = out->bytes};
  ++sends_;
  out->info = info;
  out->data = data.data();
  out->bytes = data.size();
  out->token = token;
  if (credited) {
    return send_credited(out, credit);
  }
  if (eager) {
    eager_.push(out);
  } else {
    // Too large to go unasked, or the receiver's pool is full: ask. That needs no room there.
    push_control(FrameType::kRequest, tag, info, data.size());
  }
  pump_output(kInlineBudget);
  return Post::kPosted;
}

// The receiver was first: what its credit said is here.
Endpoint::Post ShmLane::send_credited(Outgoing* out, const FrameBody& credit) {
  --early_credits_;
  out->state = Outgoing::State::kBulk;
  if (credit.message_bytes != out->bytes) {
    push_control(FrameType::kRefuse, out->tag, out->info, out->bytes, kRefusesRecv);
    fail_send(out, Code::kMismatch, &credit);
  } else {
    bulk_.push(out);
  }
  pump_output(kInlineBudget);
  return Post::kPosted;
}

Result<Endpoint::Post> ShmLane::post_recv(const Tag& tag, const OperationInfo& info,
                                          std::span<std::byte> data, Token token) {
  if (receives_ >= kPostsMax) {
    return Post::kBusy;
  }
  Incoming* in = incoming_.find(tag);
  if (in != nullptr && in->state == Incoming::State::kPosted) {
    return tag_in_use(tag, "received from");
  }
  if (over_ && in == nullptr) {
    return *over_;
  }
  cancelled_.remove(tag.operation);
  const bool matched = in != nullptr;
  if (!matched) {
    in = shared_->incoming.take();
    in->tag = tag;
    incoming_.insert(in);
  }
  in->info = info;
  in->data = data.data();
  in->token = token;
  ++receives_;
  if (matched) {
    return post_matched_recv(in, data);
  }
  in->bytes = data.size();
  if (data.size() > kEagerBytes) {
    in->credited = true;
    push_control(FrameType::kCredit, tag, info, data.size());
    pump_output(kInlineBudget);
  }
  return Post::kPosted;
}

// The message was here, or announced, before its buffer.
Endpoint::Post ShmLane::post_matched_recv(Incoming* in, std::span<std::byte> data) {
  const std::size_t theirs = in->bytes;
  const bool stored = in->state == Incoming::State::kStored;
  if (stored) {
    free_eager(theirs);
  } else {
    --requests_;
  }
  in->state = Incoming::State::kPosted;
  in->bytes = data.size();
  if (theirs != data.size()) {
    refuse(in, stored ? kRefusesEager : 0);
    fail_recv(in, Code::kMismatch, theirs);
  } else if (stored) {
    if (theirs > 0) {
      std::memcpy(data.data(), in->stored, theirs);
    }
    in->received = theirs;
    complete_recv(in);
  } else {
    in->credited = true;
    push_control(FrameType::kCredit, in->tag, in->info, in->bytes);
  }
  pump_output(kInlineBudget);
  return Post::kPosted;
}

void ShmLane::push(const Completion& completion, std::uint64_t operation) {
  shared_->completions.push_back({completion, peer_, operation});
}

void ShmLane::complete_send(Outgoing* out) {
  push({.token = out->token, .bytes = out->bytes, .peer_info = {}}, out->tag.operation);
  forget_send(out);
}

void ShmLane::fail_send(Outgoing* out, Code code, const FrameBody* refusal) {
  Completion completion{.token = out->token, .code = code, .failed = true, .peer_info = {}};
  if (refusal != nullptr) {
    completion.peer_info = refusal->info;
    completion.peer_bytes = refusal->message_bytes;
  }
  push(completion, out->tag.operation);
  forget_send(out);
}

// Takes the message out of the table; its buffer is not read any more. The caller has taken it out
// of the queues.
void ShmLane::forget_send(Outgoing* out) {
  if (out->state == Outgoing::State::kCreditOnly) {
    --early_credits_;
  } else {
    --sends_;
  }
  outgoing_.erase(out);
  shared_->outgoing.give_back(out);
}

void ShmLane::complete_recv(Incoming* in) {
  push({.token = in->token, .is_recv = true, .bytes = in->received, .peer_info = in->peer_info},
       in->tag.operation);
  forget_recv(in);
}

void ShmLane::fail_recv(Incoming* in, Code code, std::uint64_t peer_bytes) {
  push({.token = in->token,
        .code = code,
        .failed = true,
        .is_recv = true,
        .peer_info = in->peer_info,
        .peer_bytes = peer_bytes},
       in->tag.operation);
  forget_recv(in);
}

// The message's buffer is not written any more.
void ShmLane::forget_recv(Incoming* in) {
  if (in->state == Incoming::State::kPosted) {
    --receives_;
  } else if (in->state == Incoming::State::kRequested) {
    --requests_;
  }
  if (in->stored != nullptr) {
    shared_->blocks.give_back(in->stored, in->stored_bytes);
  }
  incoming_.erase(in);
  shared_->incoming.give_back(in);
}

bool ShmLane::offers(const Tag& tag) const {
  const Incoming* in = incoming_.find(tag);
  return in != nullptr && in->state != Incoming::State::kPosted;
}

void ShmLane::cancel(std::uint64_t operation) {
  cancelled_.add(operation);
  control_.drop_if([&](const Control& control) {
    return control.tag.operation == operation &&
           (control.type == FrameType::kRequest || control.type == FrameType::kCredit);
  });
  const auto cancelled = [&](const Outgoing* out) { return out->tag.operation == operation; };
  eager_.drop_if(cancelled);
  bulk_.drop_if(cancelled);
  for (Outgoing* out : outgoing_.entries()) {
    if (cancelled(out)) {
      if (out->state == Outgoing::State::kEager) {
        eager_sent_ -= eager_cost(out->bytes);  // nothing of it will arrive
      }
      forget_send(out);
    }
  }
  for (Incoming* in : incoming_.entries()) {
    if (in->tag.operation == operation) {
      if (in->state == Incoming::State::kStored) {
        free_eager(in->bytes);
      } else if (in->state == Incoming::State::kRequested) {
        push_control(FrameType::kRefuse, in->tag, {}, 0, kDropped);
      }
      forget_recv(in);
    }
  }
  std::erase_if(shared_->completions, [&](const LaneShared::Pending& pending) {
    return pending.peer == peer_ && pending.operation == operation;
  });
  pump_output(kInlineBudget);
}

bool ShmLane::pump() {
  if (over_) {
    return false;
  }
  const bool read = pump_input(kPumpBudget);
  const bool wrote = has_output() && pump_output(kPumpBudget);
  if (writer_.corrupt()) [[unlikely]] {
    broken("it says that it has read frames that were never written");
    return true;
  }
  return read || wrote;
}

bool ShmLane::ready() {
  return !over_ && (reader_.ready() || (has_output() && pump_output(kInlineBudget)));
}

void ShmLane::on_peer_death() {
  while (!over_ && pump_input(kNoBudget)) {
  }
  if (!over_) {
    end({.code = Code::kPeerDead,
         .culprit = peer_,
         .message = fmt::format("The process of rank {} on this node is gone.", peer_)},
        true);
  }
}

void ShmLane::leave() {
  if (!over_) {
    pump_output(kNoBudget);
    if (writer_.room_for_goodbye()) {
      writer_.put(FrameType::kGoodbye, 0, {}, nullptr, 0);
      ring_peer();
    }
  }
  end({.code = Code::kAborted, .message = "This rank has shut its shared-memory transport down."},
      false);
}

// The peer, or something that wrote into its memory, broke the protocol.
void ShmLane::broken(const std::string& what) {
  Error error{
      .code = Code::kProtocol,
      .culprit = peer_,
      .message = fmt::format(
          "Rank {} read from the shared memory of rank {} what breaks the protocol: {}. The "
          "lane is closed.",
          shared_->rank, peer_, what)};
  log(LogLevel::kError, "shm", "{}", error.message);
  end(std::move(error), true);
}

// No message, now and later: fails all posts and refuses new ones with `why`. `dead`: also told as
// a death. What had arrived completely can still be received.
void ShmLane::end(Error why, bool dead) {
  if (over_) {
    return;
  }
  log(LogLevel::kDebug, "shm", "{}", why.message);
  const Code code = why.code;
  over_ = std::move(why);
  control_.drop_if([](const Control&) { return true; });
  eager_.drop_if([](const Outgoing*) { return true; });
  bulk_.drop_if([](const Outgoing*) { return true; });
  for (Outgoing* out : outgoing_.entries()) {
    if (out->state == Outgoing::State::kCreditOnly) {
      forget_send(out);
    } else {
      fail_send(out, code, nullptr);
    }
  }
  for (Incoming* in : incoming_.entries()) {
    if (in->state == Incoming::State::kPosted) {
      fail_recv(in, code, 0);
    } else if (in->state == Incoming::State::kRequested) {
      forget_recv(in);
    }
  }
  if (dead) {
    shared_->dead.push_back(peer_);
  }
}

}  // namespace isthmus::shm
