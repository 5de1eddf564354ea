#include "transport/tcp/lane.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "transport/tcp/sockets.h"

namespace isthmus::tcp {
namespace {

// What one post may write itself: one chunk, so that posting stays short.
constexpr std::size_t kInlineBudget = kChunkBytes;
// What one pump() may read and write on one lane: compute and other lanes get their turn.
constexpr std::size_t kPumpBudget = std::size_t{1} << 20;
// Bulk data of a pair after which further flows are opened.
constexpr std::size_t kWidenBytes = std::size_t{1} << 20;
// Unread bytes thrown away before a close, so that the kernel sends FIN and not RST, which could
// overtake what the peer has not read yet.
constexpr std::size_t kDrainBytes = std::size_t{1} << 20;

}  // namespace

Lane::Lane(LaneShared* shared, int peer)
    : shared_(shared),
      peer_(peer),
      bulk_(&shared->bulk),
      scratch_(kNoticeFixedBytes + kNoticeTextMax) {}

Lane::~Lane() = default;

Error Lane::tag_in_use(const Tag& tag, const char* direction) const {
  return {.code = Code::kInvalidArgument,
          .message = fmt::format(
              "Message {} of operation {:#x} is already being {} rank {}: a tag is used once while "
              "it is in flight.",
              tag.message, tag.operation, direction, peer_)};
}

void Lane::want_connection(bool urgent) {
  if (!connected()) {
    shared_->connect(peer_, urgent);
  }
}

// Small jobs keep one connection a pair: further flows are opened once much data has passed. The
// lower rank opens them, so that nobody has to decide between two calls.
void Lane::count_bulk(std::size_t bytes) {
  if (widened_ || shared_->options.rank > peer_) {
    return;
  }
  bulk_bytes_ += bytes;
  if (bulk_bytes_ >= kWidenBytes && connected()) {
    widened_ = true;
    shared_->widen(peer_);
  }
}

Result<Endpoint::Post> Lane::post_send(const Tag& tag, const OperationInfo& info,
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
  newest_ = static_cast<std::uint32_t>(tag.operation);
  Outgoing* out = outgoing_.find(tag);
  if (out != nullptr && out->state != Outgoing::State::kCreditOnly) {
    return tag_in_use(tag, "sent to");
  }
  const bool credited = out != nullptr;
  FrameHeader credit;
  if (credited) {
    credit = make_header(FrameType::kCredit, tag, out->info);
    credit.message_bytes = out->bytes;
    --early_credits_;
  } else {
    out = shared_->outgoing.take();
    out->tag = tag;
    outgoing_.insert(out);
  }
  ++sends_;
  out->info = info;
  out->data = data.data();
  out->bytes = data.size();
  out->token = token;
  inline_ = out;
  inline_done_ = false;
  if (credited && credit.message_bytes != data.size()) {
    out->state = Outgoing::State::kBulk;
    push_control(FrameType::kRefuse, tag, info, data.size(), kFlagRefusesRecv);
    inline_ = nullptr;
    fail_send(out, Code::kMismatch, &credit);
  } else if (credited) {
    out->state = Outgoing::State::kBulk;
    out->queued = true;
    bulk_.push(out);
    count_bulk(data.size());
  } else if (data.size() <= kEagerBytes &&
             eager_sent_ + eager_cost(data.size()) - peer_freed_ <= kEagerQuota) {
    out->state = Outgoing::State::kEager;
    out->queued = true;
    eager_sent_ += eager_cost(data.size());
    eager_.push(out);
  } else {
    // Too large to go unasked, or the receiver's pool is full: ask. That needs no room there.
    out->state = Outgoing::State::kRequested;
    count_waiting(1);
    push_control(FrameType::kRequest, tag, info, data.size());
    count_bulk(data.size());
  }
  if (info.priority != Priority::kNormal) {
    limit_sockets();
  }
  want_connection(true);
  pump_output(kInlineBudget);
  inline_ = nullptr;
  return inline_done_ ? Post::kDone : Post::kPosted;
}

Result<Endpoint::Post> Lane::post_recv(const Tag& tag, const OperationInfo& info,
                                       std::span<std::byte> data, Token token) {
  if (receives_ >= kPostsMax) {
    return Post::kBusy;
  }
  Incoming* in = incoming_.find(tag);
  if (in != nullptr && in->posted) {
    return tag_in_use(tag, "received from");
  }
  if (over_ && in == nullptr) {
    return *over_;
  }
  cancelled_.remove(tag.operation);
  newest_ = static_cast<std::uint32_t>(tag.operation);
  const bool matched = in != nullptr;
  if (!matched) {
    in = shared_->incoming.take();
    in->tag = tag;
    incoming_.insert(in);
  }
  in->info = info;
  in->data = data.data();
  in->token = token;
  in->posted = true;
  ++receives_;
  count_waiting(1);
  if (matched) {
    const std::size_t theirs = in->bytes;
    in->bytes = data.size();
    if (in->state == Incoming::State::kRequested && theirs != data.size()) {
      refuse(in, 0);
      fail_recv(in, Code::kMismatch, theirs);
      pump_output(kInlineBudget);
      return Post::kPosted;
    }
    return post_matched_recv(in);
  }
  in->bytes = data.size();
  if (data.size() > kEagerBytes) {
    in->credited = true;
    ++bulk_receives_;
    push_control(FrameType::kCredit, tag, info, data.size());
    count_bulk(data.size());
  }
  want_connection(false);
  pump_output(kInlineBudget);
  return Post::kPosted;
}

// The message was here, or announced, before its buffer.
Result<Endpoint::Post> Lane::post_matched_recv(Incoming* in) {
  switch (in->state) {
    case Incoming::State::kRequested:
      --requests_;
      in->state = Incoming::State::kPosted;
      in->credited = true;
      ++bulk_receives_;
      push_control(FrameType::kCredit, in->tag, in->info, in->bytes);
      break;
    case Incoming::State::kStored:
      take_stored(in);
      break;
    case Incoming::State::kStoring:  // end_eager() goes on
      break;
    case Incoming::State::kPosted:
      ISTHMUS_CHECK(false, "a posted receive was matched twice");
  }
  pump_output(kInlineBudget);
  return Post::kPosted;
}

// Moves a stored message into the buffer that was posted for it.
void Lane::take_stored(Incoming* in) {
  const std::size_t bytes = in->stored_bytes;
  free_eager(bytes);
  if (bytes != in->bytes) {
    refuse(in, kFlagRefusesEager);
    fail_recv(in, Code::kMismatch, bytes);
    return;
  }
  if (bytes > 0) {
    std::memcpy(in->data, in->stored, bytes);
  }
  in->received = bytes;
  complete_recv(in);
}

void Lane::push(const Completion& completion, std::uint64_t operation) {
  shared_->completions.push_back({completion, peer_, operation});
}

void Lane::count_waiting(int change) {
  const bool before = waiting_ > 0;
  waiting_ += change;
  const bool after = waiting_ > 0;
  if (before != after) {
    shared_->waiting += after ? 1 : -1;
    shared_->waiting_xor ^= peer_;
  }
}

void Lane::complete_send(Outgoing* out) {
  if (out == inline_) {
    inline_done_ = true;
  } else {
    push({.token = out->token, .bytes = out->bytes, .peer_info = {}}, out->tag.operation);
  }
  forget_send(out);
}

void Lane::fail_send(Outgoing* out, Code code, const FrameHeader* refusal) {
  Completion completion{.token = out->token, .code = code, .failed = true, .peer_info = {}};
  if (refusal != nullptr) {
    completion.peer_info = frame_info(*refusal);
    completion.peer_bytes = refusal->message_bytes;
  }
  push(completion, out->tag.operation);
  forget_send(out);
}

// Takes the message out of the tables and, unless the caller has done that, out of its queue; its
// buffer is not read any more.
void Lane::forget_send(Outgoing* out, bool dequeue) {
  const bool untouched = out->queued && out->offset == 0;
  if (out->state == Outgoing::State::kCreditOnly) {
    --early_credits_;
  } else {
    --sends_;
  }
  if (out->state == Outgoing::State::kRequested || out->wants_ack) {
    count_waiting(-1);
  }
  if (out->queued && dequeue) {
    const auto same = [&](const Outgoing* other) { return other == out; };
    if (out->state == Outgoing::State::kEager) {
      eager_.drop_if(same);
    } else {
      bulk_.drop_if(same);
    }
  }
  bool unsent = untouched;
  if (out->frames > 0) {
    unsent = true;
    for (const std::unique_ptr<Flow>& flow : flows_) {
      unsent &= !flow->writer.detach(out);
    }
  }
  if (out->state == Outgoing::State::kEager && unsent && (untouched || out->frames > 0)) {
    eager_sent_ -= eager_cost(out->bytes);  // nothing of it will arrive
    forget_kept(*out);
  }
  outgoing_.erase(out);
  shared_->outgoing.give_back(out);
}

void Lane::complete_recv(Incoming* in) {
  push({.token = in->token, .is_recv = true, .bytes = in->received, .peer_info = in->peer_info},
       in->tag.operation);
  forget_recv(in);
}

void Lane::fail_recv(Incoming* in, Code code, std::uint64_t peer_bytes) {
  push({.token = in->token,
        .code = code,
        .failed = true,
        .is_recv = true,
        .peer_info = in->peer_info,
        .peer_bytes = peer_bytes},
       in->tag.operation);
  forget_recv(in);
}

// The message's buffer is not written any more; what still comes of a frame being read is dropped.
void Lane::forget_recv(Incoming* in) {
  for (const std::unique_ptr<Flow>& flow : flows_) {
    if (flow->current == in) {
      flow->reader.place(nullptr);
      flow->current = nullptr;
    }
  }
  if (in->posted) {
    --receives_;
    count_waiting(-1);
  }
  if (in->credited) {
    --bulk_receives_;
  }
  if (in->state == Incoming::State::kRequested) {
    --requests_;
  }
  if (in->stored != nullptr) {
    shared_->blocks.give_back(in->stored, in->stored_bytes);
  }
  incoming_.erase(in);
  shared_->incoming.give_back(in);
}

bool Lane::offers(const Tag& tag) const {
  const Incoming* in = incoming_.find(tag);
  return in != nullptr && !in->posted;
}

void Lane::cancel(std::uint64_t operation) {
  cancelled_.add(operation);
  control_.drop_if([&](const Control& control) {
    const FrameType type = frame_type(control.header);
    return control.header.operation == operation &&
           (type == FrameType::kRequest || type == FrameType::kCredit);
  });
  const auto cancelled = [&](const Outgoing* out) { return out->tag.operation == operation; };
  eager_.drop_if(cancelled);
  bulk_.drop_if(cancelled);
  for (Outgoing* out : outgoing_.entries()) {
    if (cancelled(out)) {
      forget_send(out, false);
    }
  }
  for (Incoming* in : incoming_.entries()) {
    if (in->tag.operation == operation) {
      if (in->state == Incoming::State::kStored) {
        free_eager(in->stored_bytes);
      } else if (in->state == Incoming::State::kRequested) {
        push_control(FrameType::kRefuse, in->tag, {}, 0, kFlagDropped);
        mark_active();
      }
      forget_recv(in);
    }
  }
  std::erase_if(shared_->completions, [&](const LaneShared::Pending& pending) {
    return pending.peer == peer_ && pending.operation == operation;
  });
}

void Lane::attach(Fd fd) {
  ISTHMUS_CHECK(flows_.empty() && !over_, "a lane has one first connection in its life");
  tune_connection(fd);
  log(LogLevel::kDebug, "tcp", "connected to rank {} at {}, congestion control {}", peer_,
      peer_name(fd), congestion_control(fd));
  flows_.push_back(std::make_unique<Flow>(std::move(fd), 0));
  main_ = flows_[0].get();
  if (limited_) {
    limit_unsent(main_->fd, kUnsentOfPriorities);
  }
  count_bulk(0);  // of what was posted before
  mark_active();
}

bool Lane::has_flow(std::uint8_t number) const {
  return std::any_of(flows_.begin(), flows_.end(), [&](const std::unique_ptr<Flow>& flow) {
    return flow->number == number && flow->fd.valid();
  });
}

std::size_t Lane::flow_count() const {
  return static_cast<std::size_t>(
      std::count_if(flows_.begin(), flows_.end(),
                    [](const std::unique_ptr<Flow>& flow) { return flow->fd.valid(); }));
}

void Lane::attach_flow(std::uint8_t number, Fd fd) {
  ISTHMUS_CHECK(connected(), "further flows are for connected lanes");
  tune_connection(fd);
  // From now on chunks go to the flow that is free: none may hide much unsent data in its socket.
  const int unsent = limited_ ? kUnsentOfPriorities : kUnsentOfFlows;
  limit_unsent(main_->fd, unsent);
  limit_unsent(fd, unsent);
  log(LogLevel::kDebug, "tcp", "flow {} to rank {} at {}", number, peer_, peer_name(fd));
  shared_->wide += wide_ ? 0 : 1;
  wide_ = true;
  std::erase_if(lost_, [&](const auto& each) { return each.first == number; });
  Flow* replaced = nullptr;
  for (const std::unique_ptr<Flow>& flow : flows_) {
    replaced = flow->number == number && flow->fd.valid() ? flow.get() : replaced;
  }
  flows_.push_back(std::make_unique<Flow>(std::move(fd), number));
  if (replaced != nullptr && dispensable(*replaced)) {
    drop_flow(replaced, "the peer has called anew");
    std::erase_if(lost_, [&](const auto& each) { return each.first == number; });
  }
  mark_active();
}

void Lane::end(Error why, bool dead) {
  if (over_) {
    return;
  }
  // The engine's own sentence names the peer; which rails went before is told here alone.
  log(dead && !lost_.empty() ? LogLevel::kWarn : LogLevel::kDebug, "tcp", "{}", why.message);
  const Code code = why.code;
  over_ = std::move(why);
  shared_->wide -= wide_ ? 1 : 0;
  kept_.clear();
  for (const std::unique_ptr<Flow>& flow : flows_) {
    set_blocked(flow.get(), false);
    flow->fd.reset();
    flow->writer.clear();
    flow->current = nullptr;  // nothing is read any more
  }
  control_.drop_if([](const Control&) { return true; });
  eager_.drop_if([](const Outgoing*) { return true; });
  bulk_.drop_if([](const Outgoing*) { return true; });
  for (Outgoing* out : outgoing_.entries()) {
    out->queued = false;
    out->frames = 0;
    if (out->state == Outgoing::State::kCreditOnly) {
      forget_send(out);
    } else {
      fail_send(out, code, nullptr);
    }
  }
  for (Incoming* in : incoming_.entries()) {
    if (in->posted) {
      fail_recv(in, code, 0);
    } else if (in->state != Incoming::State::kStored) {
      forget_recv(in);
    }
  }
  if (dead) {
    shared_->dead.push_back(peer_);
  }
}

void Lane::leave() {
  if (!over_ && connected()) {
    pump_output(kPumpBudget);
    for (const std::unique_ptr<Flow>& flow : flows_) {
      if (!flow->fd.valid()) {
        continue;
      }
      say_goodbye(flow.get());
      ::shutdown(flow->fd.get(), SHUT_WR);
      std::array<std::byte, 16384> waste{};
      for (std::size_t drained = 0; drained < kDrainBytes;) {
        const ssize_t got = ::recv(flow->fd.get(), waste.data(), waste.size(), MSG_DONTWAIT);
        if (got <= 0) {
          break;
        }
        drained += static_cast<std::size_t>(got);
      }
    }
  }
  end({.code = Code::kAborted, .message = "This rank has shut its TCP transport down."}, false);
}

void Lane::check_silence() {
  for (std::size_t i = 0; i < flows_.size() && connected(); ++i) {
    const Fd& fd = flows_[i]->fd;
    if (const std::optional<std::string> silence =
            fd.valid() ? silent_peer(fd) : std::optional<std::string>()) {
      end({.code = Code::kPeerDead,
           .culprit = peer_,
           .message = fmt::format("The connection to rank {} at {} is given up: {}{}.", peer_,
                                  peer_name(fd), *silence, lost_rails())},
          true);
    }
  }
}

void Lane::on_events(std::uint32_t number, std::uint32_t events) {
  for (const std::unique_ptr<Flow>& flow : flows_) {
    if (flow->number != number || !flow->fd.valid()) {
      continue;
    }
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
      flow->reader.wake((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
    }
    if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) {
      set_blocked(flow.get(), false);
    }
  }
}

bool Lane::pump() {
  active_ = false;
  if (wide_) {
    std::erase_if(flows_, [](const std::unique_ptr<Flow>& flow) { return !flow->fd.valid(); });
    turn_ = turn_ < flows_.size() ? turn_ : 0;
  }
  bool moved = false;
  // A flow may be attached meanwhile, and change places, but none goes away.
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    moved |= pump_input(flows_[i].get(), kPumpBudget);
  }
  const bool wrote = pump_output(kPumpBudget);
  return moved || wrote;
}

bool Lane::pump_unasked() {
  if (connected()) {
    main_->reader.wake(false);
    for (std::size_t i = 1; i < flows_.size() && bulk_receives_ > 0; ++i) {
      flows_[i]->reader.wake(false);
    }
  }
  return pump();
}

}  // namespace isthmus::tcp
