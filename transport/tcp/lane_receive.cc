#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/log.h"
#include "transport/goodbye.h"
#include "transport/tcp/lane.h"

namespace isthmus::tcp {
namespace {

// All chunks of a message but the last have one size, so that a number tells the place and a byte
// that came counts once.
bool chunk_fits(const FrameHeader& header, Incoming* in) {
  if (header.message_bytes != in->bytes) {
    return false;
  }
  const bool last = header.offset + header.payload_bytes == header.message_bytes;
  if (last && header.chunk == 0) {
    return header.offset == 0;
  }
  const std::uint64_t size = last ? header.offset / header.chunk : header.payload_bytes;
  if (size == 0 || header.payload_bytes > size || header.offset % size != 0 ||
      header.offset / size != header.chunk || (in->chunk_bytes != 0 && in->chunk_bytes != size)) {
    return false;
  }
  in->chunk_bytes = size;
  return true;
}

}  // namespace

// Reads what is there, at most about `budget` bytes. True when a frame or a part of one came.
bool Lane::pump_input(Flow* flow, std::size_t budget) {
  if (!flow->fd.valid() || flow->over) {
    return false;
  }
  FrameReader& reader = flow->reader;
  const std::uint64_t start = reader.bytes_read();
  while (flow->fd.valid() && !flow->over) {
    if (reader.bytes_read() - start >= budget) {
      mark_active();
      return true;
    }
    reader.set_bulk(bulk_receives_ > 0);
    switch (reader.next(flow->fd.get())) {
      case FrameReader::Event::kDry:
        if (flow->write_failed) {
          lost(flow, flow->writer.sys_errno());
          return true;
        }
        return reader.bytes_read() != start;
      case FrameReader::Event::kHeader: {
        std::byte* place = nullptr;
        if (begin_frame(flow, &place)) {
          reader.place(place);
        }
        break;
      }
      case FrameReader::Event::kFrame:
        end_frame(flow);
        break;
      case FrameReader::Event::kClosed:
        lost(flow, reader.sys_errno());
        return true;
      case FrameReader::Event::kFault:
        broken(reader.fault());
        return true;
    }
  }
  return true;
}

void Lane::lost(Flow* flow, int sys_errno) {
  if (dispensable(*flow)) {
    drop_flow(flow, sys_errno == 0 ? "closed by the peer" : std::strerror(sys_errno));
    return;
  }
  flow->over = true;
  // What had reached this side by other flows is delivered first.
  bool goodbye = false;
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    Flow* other = flows_[i].get();
    goodbye |= other->farewell;
    other->reader.wake(true);
    pump_input(other, kMessageBytesMax);
  }
  if (goodbye && !over_) {
    farewell();
    return;
  }
  const char* what = sys_errno == 0 ? "was closed: its process is gone" : "broke";
  Error error{.code = Code::kPeerDead,
              .culprit = peer_,
              .message = fmt::format("{} to rank {} {}",
                                     flow->number == 0 ? std::string("The connection")
                                                       : fmt::format("Connection {}", flow->number),
                                     peer_, what)};
  if (sys_errno != 0) {
    error = system_error(Code::kPeerDead, sys_errno, error.message);
    error.culprit = peer_;
  } else {
    error.message += '.';
  }
  error.message += lost_rails();
  end(std::move(error), true);
}

// Nothing follows on this flow. The goodbye counts once it has come on all flows that the peer had,
// for they may be ahead of each other.
void Lane::on_goodbye(Flow* flow, const FrameHeader& header) {
  flow->over = true;
  flow->farewell = true;
  const auto said = static_cast<std::size_t>(
      std::count_if(flows_.begin(), flows_.end(),
                    [](const std::unique_ptr<Flow>& each) { return each->farewell; }));
  if (said >= header.chunk) {  // the peer has closed its others
    farewell();
  }
}

void Lane::farewell() {
  shared_->notices.push_back(goodbye_notice(peer_));
  end(goodbye_error(peer_), false);
}

// The peer, or something between, broke the protocol: the connection cannot be used any more.
bool Lane::broken(std::string what) {
  Error error{.code = Code::kProtocol,
              .culprit = peer_,
              .message = fmt::format(
                  "Rank {} got bytes from rank {} that break the protocol: {}. The connection is "
                  "closed.",
                  shared_->options.rank, peer_, what)};
  log(LogLevel::kError, "tcp", "{}", error.message);
  end(std::move(error), true);
  return false;
}

// Decides where the payload goes. False: the lane has ended.
bool Lane::begin_frame(Flow* flow, std::byte** place) {
  const FrameHeader& header = flow->reader.header();
  flow->current = nullptr;
  if (header.sender != static_cast<std::uint32_t>(peer_)) {
    return broken(fmt::format("a frame says it is from rank {}", header.sender));
  }
  if (header.freed > eager_sent_) {
    return broken(fmt::format("it freed {} eager bytes of {} sent", header.freed, eager_sent_));
  }
  peer_freed_ = std::max(peer_freed_, header.freed);
  flow->numbered = false;
  if (wide_ || header.chunk != 0) {
    on_acked(header.acked);
    if (!begin_numbered(flow)) {
      return true;  // it came before, on a flow that is lost
    }
  }
  switch (frame_type(header)) {
    case FrameType::kEager:
      return begin_eager(flow, place);
    case FrameType::kChunk:
      return begin_chunk(flow, place);
    case FrameType::kNotice:
      *place = scratch_.data();
      return true;
    case FrameType::kRequest:
    case FrameType::kCredit:
    case FrameType::kAck:
    case FrameType::kRefuse:
    case FrameType::kGoodbye:
    case FrameType::kFreed:
      return true;
    case FrameType::kHello:
    case FrameType::kWelcome:
    case FrameType::kStart:
    case FrameType::kReject:
      break;
  }
  return broken(fmt::format("a frame of type {} came after the handshake", header.type));
}

bool Lane::end_frame(Flow* flow) {
  const FrameHeader& header = flow->reader.header();
  if (flow->numbered) {
    end_numbered(flow);
  }
  if (flow->skip) {
    flow->skip = false;
    return true;
  }
  switch (frame_type(header)) {
    case FrameType::kEager:
      end_eager(flow);
      return true;
    case FrameType::kChunk:
      end_chunk(flow);
      return true;
    case FrameType::kNotice:
      return on_notice(header);
    case FrameType::kRequest:
      return on_request(header);
    case FrameType::kCredit:
      return on_credit(header);
    case FrameType::kRefuse:
      on_refuse(header);
      return true;
    case FrameType::kGoodbye:
      on_goodbye(flow, header);
      return true;
    case FrameType::kAck:
      on_ack(header);
      return true;
    default:  // kFreed: begin_frame() took all there is; the others never get here
      return true;
  }
}

bool Lane::begin_eager(Flow* flow, std::byte** place) {
  const FrameHeader& header = flow->reader.header();
  const std::size_t bytes = header.payload_bytes;
  eager_received_ += eager_cost(bytes);
  if (eager_received_ - freed_ > kEagerQuota) {
    return broken(fmt::format("it has {} eager bytes waiting here, more than the quota of {}",
                              eager_received_ - freed_, kEagerQuota));
  }
  const Tag tag = frame_tag(header);
  Incoming* in = incoming_.find(tag);
  if (in == nullptr) {
    if (cancelled_.contains(tag.operation)) {
      return true;
    }
    in = shared_->incoming.take();
    in->tag = tag;
    in->state = Incoming::State::kStoring;
    in->stored = shared_->blocks.take(bytes);
    in->stored_bytes = bytes;
    in->peer_info = frame_info(header);
    incoming_.insert(in);
    *place = in->stored;
    flow->current = in;
    return true;
  }
  if (in->state != Incoming::State::kPosted || in->received > 0) {
    return true;  // it came before: a duplicate
  }
  in->peer_info = frame_info(header);
  if (in->bytes != bytes) {
    refuse(in, kFlagRefusesEager);
    fail_recv(in, Code::kMismatch, bytes);
    return true;
  }
  *place = in->data;
  flow->current = in;
  return true;
}

void Lane::end_eager(Flow* flow) {
  const std::size_t bytes = flow->reader.header().payload_bytes;
  Incoming* in = flow->current;
  flow->current = nullptr;
  if (in == nullptr) {
    free_eager(bytes);
  } else if (in->state == Incoming::State::kStoring) {
    in->state = Incoming::State::kStored;
    if (in->posted) {
      take_stored(in);
    }
  } else {
    in->received = bytes;
    free_eager(bytes);
    complete_recv(in);
  }
}

bool Lane::begin_chunk(Flow* flow, std::byte** place) {
  const FrameHeader& header = flow->reader.header();
  Incoming* in = incoming_.find(frame_tag(header));
  if (in == nullptr || in->state != Incoming::State::kPosted || in->chunks.contains(header.chunk)) {
    // Of a cancelled operation, of a message that is complete, or a duplicate.
    log(LogLevel::kTrace, "tcp", "chunk {} of operation {:#x} message {} from rank {} is dropped",
        header.chunk, header.operation, header.message, peer_);
    return true;
  }
  if (!chunk_fits(header, in)) {
    return broken(fmt::format(
        "chunk {} of {} bytes at offset {} of a message of {} bytes came, expected chunks of {} "
        "bytes of a message of {}",
        header.chunk, header.payload_bytes, header.offset, header.message_bytes, in->chunk_bytes,
        in->bytes));
  }
  in->peer_info = frame_info(header);
  in->wants_ack |= (header.flags & kFlagWantsAck) != 0;
  *place = in->data + header.offset;
  flow->current = in;
  return true;
}

void Lane::end_chunk(Flow* flow) {
  const FrameHeader& header = flow->reader.header();
  Incoming* in = flow->current;
  flow->current = nullptr;
  if (in == nullptr) {
    // It was dropped, perhaps while it was read. No ack will follow for a cancelled operation.
    if ((header.flags & kFlagWantsAck) != 0 && cancelled_.contains(header.operation)) {
      push_control(FrameType::kRefuse, frame_tag(header), {}, 0, kFlagDropped);
    }
    return;
  }
  if (in->chunks.contains(header.chunk)) {
    return;  // it came twice at once, by two flows
  }
  in->received += header.payload_bytes;
  in->chunks.add(header.chunk);
  if (in->received == in->bytes) {
    if (in->wants_ack) {
      push_control(FrameType::kAck, in->tag, in->info, in->bytes);
    }
    complete_recv(in);
  }
}

// A message that may have been sent by several flows is there, every byte of it.
void Lane::on_ack(const FrameHeader& header) {
  Outgoing* out = outgoing_.find(frame_tag(header));
  if (out != nullptr && out->wants_ack) {
    complete_send(out);
  }
}

// The peer has a message that it may not send unasked.
bool Lane::on_request(const FrameHeader& header) {
  const Tag tag = frame_tag(header);
  Incoming* in = incoming_.find(tag);
  if (in == nullptr) {
    if (cancelled_.contains(tag.operation)) {
      push_control(FrameType::kRefuse, tag, {}, 0, kFlagDropped);
      return true;
    }
    if (requests_ >= kPostsMax) {
      return broken(fmt::format("more than {} requests are waiting", kPostsMax));
    }
    in = shared_->incoming.take();
    in->tag = tag;
    in->state = Incoming::State::kRequested;
    in->bytes = header.message_bytes;
    in->peer_info = frame_info(header);
    incoming_.insert(in);
    ++requests_;
    return true;
  }
  if (in->state != Incoming::State::kPosted) {
    return true;  // a duplicate
  }
  in->peer_info = frame_info(header);
  if (in->bytes != header.message_bytes) {
    refuse(in, 0);
    fail_recv(in, Code::kMismatch, header.message_bytes);
  } else if (!in->credited) {
    in->credited = true;
    ++bulk_receives_;
    push_control(FrameType::kCredit, tag, in->info, in->bytes);
  }
  return true;
}

// The peer has a buffer for a message, asked for or not.
bool Lane::on_credit(const FrameHeader& header) {
  const Tag tag = frame_tag(header);
  Outgoing* out = outgoing_.find(tag);
  if (out == nullptr) {
    if (cancelled_.contains(tag.operation)) {
      return true;
    }
    if (early_credits_ >= 2 * kPostsMax) {
      return broken(fmt::format("more than {} early credits are waiting", 2 * kPostsMax));
    }
    out = shared_->outgoing.take();
    out->tag = tag;
    out->state = Outgoing::State::kCreditOnly;
    out->info = frame_info(header);
    out->bytes = header.message_bytes;
    outgoing_.insert(out);
    ++early_credits_;
    return true;
  }
  if (out->state != Outgoing::State::kRequested) {
    return true;  // a duplicate, or for a message that went unasked and will be refused
  }
  if (out->bytes != header.message_bytes) {
    push_control(FrameType::kRefuse, tag, out->info, out->bytes, kFlagRefusesRecv);
    fail_send(out, Code::kMismatch, &header);
    return true;
  }
  count_waiting(-1);
  out->state = Outgoing::State::kBulk;
  out->queued = true;
  bulk_.push(out);
  return true;
}

void Lane::on_refuse(const FrameHeader& header) {
  const Tag tag = frame_tag(header);
  if ((header.flags & kFlagRefusesRecv) != 0) {
    Incoming* in = incoming_.find(tag);
    if (in != nullptr && in->state == Incoming::State::kPosted) {
      in->peer_info = frame_info(header);
      fail_recv(in, Code::kMismatch, header.message_bytes);
    }
    return;
  }
  Outgoing* out = outgoing_.find(tag);
  if (out != nullptr && out->state == Outgoing::State::kCreditOnly) {
    forget_send(out);
    out = nullptr;
  }
  if ((header.flags & kFlagDropped) != 0) {
    if (out != nullptr && (out->state == Outgoing::State::kRequested || out->wants_ack)) {
      complete_send(out);  // as if its bytes had been sent and dropped there
    }
  } else if (out != nullptr) {
    fail_send(out, Code::kMismatch, &header);
  } else if ((header.flags & kFlagRefusesEager) != 0 && !cancelled_.contains(tag.operation)) {
    // The send is long done: the engine is told by a notice.
    shared_->notices.push_back(
        {.kind = Notice::Kind::kRefused,
         .group = static_cast<std::uint32_t>(tag.operation >> 32),
         .sequence = static_cast<std::uint32_t>(tag.operation),
         .from = peer_,
         .code = Code::kMismatch,
         .text = fmt::format("rank {} expected {} bytes in message {} of operation {:#x} and got "
                             "another size from rank {}",
                             peer_, header.message_bytes, tag.message, tag.operation,
                             shared_->options.rank),
         .peer_info = frame_info(header)});
  }
}

bool Lane::on_notice(const FrameHeader& header) {
  Result<Notice> notice = decode_notice({scratch_.data(), header.payload_bytes});
  if (!notice.ok()) {
    return broken(notice.error().message);
  }
  notice->from = peer_;
  shared_->notices.push_back(std::move(*notice));
  return true;
}

}  // namespace isthmus::tcp
