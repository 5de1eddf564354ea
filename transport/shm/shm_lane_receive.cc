#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/log.h"
#include "transport/goodbye.h"
#include "transport/notice_codec.h"
#include "transport/shm/shm_lane.h"

namespace isthmus::shm {
namespace {

// Room of at least so much data is given back at once, so that the sender refills it meanwhile.
constexpr std::size_t kGiveBackBytes = 4096;

}  // namespace

// Reads what is there, at most about `budget` bytes. True when a frame came or the ring is broken.
bool ShmLane::pump_input(std::size_t budget) {
  Frame frame;
  std::size_t used = 0;
  std::size_t kept = 0;
  while (!over_ && used < budget && reader_.next(&frame)) {
    const std::size_t bytes = take(frame);
    reader_.release();
    used += sizeof(LaneCell) + bytes;
    kept += bytes;
    if (kept >= kGiveBackBytes) {
      reader_.publish();
      kept = 0;
    }
  }
  if (used != 0) {
    reader_.publish();
    if (reader_.peer_blocked()) {
      ring_peer();
    }
  }
  if (reader_.fault() && !over_) [[unlikely]] {
    broken(*reader_.fault());
    return true;
  }
  return used != 0;
}

// One frame. Returns how many bytes of the data ring it held.
std::size_t ShmLane::take(const Frame& frame) {
  if (frame.type == FrameType::kInline) {
    if (frame.small > kLinePayloadBytes || !got_info_) {
      broken(fmt::format("a frame of {} bytes in its cell", frame.small));
    } else {
      take_eager(frame.tag, *got_info_, std::span(frame.payload).first(frame.small));
    }
    return 0;
  }
  if (frame.type == FrameType::kGoodbye) {
    on_goodbye();
    return 0;
  }
  const FrameBody body = frame.body();
  const std::optional<std::span<const std::byte>> data = reader_.data(body);
  if (!data || body.message_bytes > kMessageBytesMax) {
    broken(fmt::format("a frame of type {} with {} bytes at {} of a message of {}",
                       static_cast<int>(frame.type), body.data_bytes, body.data_at,
                       body.message_bytes));
    return 0;
  }
  switch (frame.type) {
    case FrameType::kEager:
      got_info_ = body.info;
      take_eager(frame.tag, body.info, *data);
      return data->size();
    case FrameType::kChunk:
      take_chunk(frame.tag, body, *data);
      return data->size();
    case FrameType::kRequest:
      on_request(frame.tag, body);
      return 0;
    case FrameType::kCredit:
      on_credit(frame.tag, body);
      return 0;
    case FrameType::kRefuse:
      on_refuse(frame.tag, body, frame.small);
      return 0;
    case FrameType::kNotice:
      on_notice(*data);
      return data->size();
    case FrameType::kInline:
    case FrameType::kGoodbye:
      break;
  }
  broken(fmt::format("frame type {} is unknown", static_cast<int>(frame.type)));
  return 0;
}

// A whole message that came without asking.
void ShmLane::take_eager(const Tag& tag, const OperationInfo& info,
                         std::span<const std::byte> data) {
  eager_received_ += eager_cost(data.size());
  if (data.size() > kEagerBytes || eager_received_ - freed_ > kEagerQuota) {
    broken(fmt::format("{} bytes came without asking, with {} waiting; the bounds are {} and {}",
                       data.size(), eager_received_ - freed_, kEagerBytes, kEagerQuota));
    return;
  }
  Incoming* in = incoming_.find(tag);
  if (in == nullptr && !cancelled_.contains(tag.operation)) {
    in = shared_->incoming.take();
    in->tag = tag;
    in->state = Incoming::State::kStored;
    in->peer_info = info;
    in->bytes = data.size();
    in->stored_bytes = data.size();
    in->stored = shared_->blocks.take(data.size());
    std::copy(data.begin(), data.end(), in->stored);
    incoming_.insert(in);
    return;
  }
  free_eager(data.size());
  if (in == nullptr || in->state != Incoming::State::kPosted || in->received > 0) {
    return;  // of a cancelled operation, or of a tag that is in use
  }
  in->peer_info = info;
  if (in->bytes != data.size()) {
    refuse(in, kRefusesEager);
    fail_recv(in, Code::kMismatch, data.size());
    return;
  }
  if (!data.empty()) {
    std::memcpy(in->data, data.data(), data.size());
  }
  in->received = data.size();
  complete_recv(in);
}

void ShmLane::take_chunk(const Tag& tag, const FrameBody& body, std::span<const std::byte> data) {
  Incoming* in = incoming_.find(tag);
  if (in == nullptr || in->state != Incoming::State::kPosted) {
    return;  // of a cancelled operation
  }
  if (body.message_bytes != in->bytes || body.offset != in->received ||
      data.size() > in->bytes - in->received) {
    broken(fmt::format("{} bytes at offset {} of a message of {} came, expected offset {} of {}",
                       data.size(), body.offset, body.message_bytes, in->received, in->bytes));
    return;
  }
  in->peer_info = body.info;
  if (!data.empty()) {
    std::memcpy(in->data + in->received, data.data(), data.size());
  }
  in->received += data.size();
  if (in->received == in->bytes) {
    complete_recv(in);
  }
}

// The peer has a message that it may not send unasked.
void ShmLane::on_request(const Tag& tag, const FrameBody& body) {
  Incoming* in = incoming_.find(tag);
  if (in == nullptr) {
    if (cancelled_.contains(tag.operation)) {
      push_control(FrameType::kRefuse, tag, {}, 0, kDropped);
      return;
    }
    if (requests_ >= kPostsMax) {
      broken(fmt::format("more than {} requests are waiting", kPostsMax));
      return;
    }
    in = shared_->incoming.take();
    in->tag = tag;
    in->state = Incoming::State::kRequested;
    in->bytes = body.message_bytes;
    in->peer_info = body.info;
    incoming_.insert(in);
    ++requests_;
    return;
  }
  if (in->state != Incoming::State::kPosted) {
    return;  // of a tag that is in use
  }
  in->peer_info = body.info;
  if (in->bytes != body.message_bytes) {
    refuse(in, 0);
    fail_recv(in, Code::kMismatch, body.message_bytes);
  } else if (!in->credited) {
    in->credited = true;
    push_control(FrameType::kCredit, tag, in->info, in->bytes);
  }
}

// The peer has a buffer for a message, asked for or not.
void ShmLane::on_credit(const Tag& tag, const FrameBody& body) {
  Outgoing* out = outgoing_.find(tag);
  if (out == nullptr) {
    if (cancelled_.contains(tag.operation)) {
      return;
    }
    if (early_credits_ >= 2 * kPostsMax) {
      broken(fmt::format("more than {} early credits are waiting", 2 * kPostsMax));
      return;
    }
    add_send(tag, Outgoing::State::kCreditOnly, body.message_bytes)->info = body.info;
    ++early_credits_;
    return;
  }
  if (out->state != Outgoing::State::kRequested) {
    return;  // for a message that goes unasked and will be refused
  }
  if (out->bytes != body.message_bytes) {
    push_control(FrameType::kRefuse, tag, out->info, out->bytes, kRefusesRecv);
    fail_send(out, Code::kMismatch, &body);
    return;
  }
  out->state = Outgoing::State::kBulk;
  bulk_.push(out);
}

void ShmLane::on_refuse(const Tag& tag, const FrameBody& body, std::uint8_t flags) {
  if ((flags & kRefusesRecv) != 0) {
    Incoming* in = incoming_.find(tag);
    if (in != nullptr && in->state == Incoming::State::kPosted) {
      in->peer_info = body.info;
      fail_recv(in, Code::kMismatch, body.message_bytes);
    }
    return;
  }
  Outgoing* out = outgoing_.find(tag);
  if (out != nullptr && out->state == Outgoing::State::kCreditOnly) {
    forget_send(out);
    out = nullptr;
  }
  if (out != nullptr && out->state == Outgoing::State::kRequested) {
    if ((flags & kDropped) != 0) {
      complete_send(out);  // as if its bytes had been sent and dropped there
    } else {
      fail_send(out, Code::kMismatch, &body);
    }
  } else if ((flags & kRefusesEager) != 0 && !cancelled_.contains(tag.operation)) {
    // The send is long done: the engine is told by a notice.
    shared_->notices.push_back(
        {.kind = Notice::Kind::kRefused,
         .group = static_cast<std::uint32_t>(tag.operation >> 32),
         .sequence = static_cast<std::uint32_t>(tag.operation),
         .from = peer_,
         .code = Code::kMismatch,
         .text = fmt::format("rank {} expected {} bytes in message {} of operation {:#x} and got "
                             "another size from rank {}",
                             peer_, body.message_bytes, tag.message, tag.operation, shared_->rank),
         .peer_info = body.info});
  }
}

void ShmLane::on_notice(std::span<const std::byte> bytes) {
  Result<Notice> notice = decode_notice(bytes);
  if (!notice.ok()) {
    broken(notice.error().message);
    return;
  }
  notice->from = peer_;
  shared_->notices.push_back(std::move(*notice));
}

void ShmLane::on_goodbye() {
  shared_->notices.push_back(goodbye_notice(peer_));
  end(goodbye_error(peer_), false);
}

}  // namespace isthmus::shm
