#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/sockets.h"

namespace isthmus::tcp {
namespace {

// Small messages go before chunks, but after so many bytes of them a chunk has its turn.
constexpr std::size_t kEagerRunBytes = kChunkBytes;
// Freed bytes that are told at the latest, also when no other frame carries them.
constexpr std::uint64_t kFreedTold = kEagerQuota / 4;
// Notices that wait for a connection or for the socket; more are dropped: they are best effort.
constexpr std::size_t kNoticesMax = 64;
// Chunks of a message that several flows share: so many that the last one, which the slowest flow
// may have, is a small part; and not so small that headers and system calls count.
constexpr std::size_t kSharedChunks = 128;
constexpr std::size_t kSharedChunkBytes = std::size_t{64} << 10;

std::uint32_t chunk_bytes_for(const Outgoing& out, std::size_t flows) {
  if (out.info.priority == Priority::kBackground) {
    return kSharedChunkBytes;  // what goes before it waits for the rest of one
  }
  return static_cast<std::uint32_t>(
      flows == 1 ? kChunkBytes
                 : std::clamp(out.bytes / kSharedChunks, kSharedChunkBytes, kChunkBytes));
}

}  // namespace

void Lane::push_control(FrameType type, const Tag& tag, const OperationInfo& info,
                        std::uint64_t message_bytes, std::uint8_t flags) {
  if (over_) {
    return;
  }
  Control control;
  control.header = make_header(type, tag, info);
  control.header.message_bytes = message_bytes;
  control.header.flags = flags;
  control_.push(std::move(control));
}

// Tells the sender that its message and the buffer `in` differ in size.
void Lane::refuse(Incoming* in, std::uint8_t flags) {
  push_control(FrameType::kRefuse, in->tag, in->info, in->bytes, flags);
}

void Lane::send_notice(const Notice& notice) {
  // Nobody is called for a farewell: a rank that never met this one does not wait for it.
  const bool farewell = notice.kind == Notice::Kind::kGoodbye && !connected();
  if (over_ || farewell || notices_ >= kNoticesMax) {
    return;
  }
  const std::string text = encode_notice(notice);
  Control control;
  control.header = make_header(FrameType::kNotice, {}, {});
  control.header.payload_bytes = static_cast<std::uint32_t>(text.size());
  control.payload = std::make_unique_for_overwrite<std::byte[]>(text.size());
  control.payload_bytes = text.size();
  std::memcpy(control.payload.get(), text.data(), text.size());
  control_.push(std::move(control));
  ++notices_;
  want_connection(true);
  pump_output(kChunkBytes);
}

// Eager data of this size has left the pool, or never needed it.
void Lane::free_eager(std::size_t bytes) {
  freed_ += eager_cost(bytes);
  if (freed_ - freed_told_ >= kFreedTold && !freed_queued_ && !over_) {
    freed_queued_ = true;
    push_control(FrameType::kFreed, {}, {}, 0);
    mark_active();
  }
}

void Lane::mark_active() {
  if (!active_) {
    active_ = true;
    shared_->active.push_back(this);
  }
}

void Lane::set_blocked(Flow* flow, bool blocked) {
  if (flow->blocked != blocked) {
    flow->blocked = blocked;
    shared_->blocked += blocked ? 1 : -1;
  }
}

// Flows take turns, a batch each, so that chunks go to whichever is free.
bool Lane::pump_output(std::size_t budget) {
  if (!connected()) {
    return false;
  }
  if (!control_.empty() || !eager_.empty()) {
    turn_ = 0;  // these have waited for the first flow only
  }
  bool moved = false;
  std::size_t used = 0;
  for (std::size_t idle = 0; idle < flows_.size();) {
    Flow* flow = flows_[turn_].get();
    ++idle;
    if (!flow->blocked && !flow->write_failed && flow->fd.valid()) {
      fill_batch(flow);
      if (!flow->writer.empty()) {
        if (used >= budget) {
          mark_active();
          return moved;
        }
        used += flow->writer.bytes();
        moved = true;
        if (write_batch(flow)) {
          idle = 0;
        }
      }
    }
    turn_ = turn_ + 1 < flows_.size() ? turn_ + 1 : 0;
  }
  return moved;
}

// True when the socket took the whole batch.
bool Lane::write_batch(Flow* flow) {
  switch (flow->writer.flush(flow->fd.get(), [this](Outgoing* out) { on_written(out); })) {
    case FrameWriter::Outcome::kWritten:
      return true;
    case FrameWriter::Outcome::kBlocked:
      set_blocked(flow, true);
      return false;
    case FrameWriter::Outcome::kFailed:
      break;
  }
  // What the peer said before it went is still to be read: pump_input() ends the lane.
  flow->write_failed = true;
  flow->reader.wake(true);
  mark_active();
  return false;
}

void Lane::fill_batch(Flow* flow) {
  while (!flow->writer.full()) {
    if (flow == main_ && !control_.empty()) {
      Control control = control_.pop();
      if (!control.again) {
        finish_control(&control);
      }
      flow->writer.add_owned(control.header, std::move(control.payload), control.payload_bytes);
    } else if (flow == main_ && !eager_.empty() &&
               (eager_run_ < kEagerRunBytes || !chunk_may_go())) {
      add_eager(flow, eager_.pop());
    } else if (chunk_may_go()) {
      add_chunk(flow, bulk_.pop());
    } else {
      return;
    }
  }
}

// Whether a chunk may go now. It waits while another lane has one of higher priority, for the links
// are the rank's; but not for long, and not for a peer that takes nothing.
bool Lane::chunk_may_go() {
  if (bulk_.empty()) {
    return false;
  }
  if (!bulk_.outranked(yield_ns())) {
    held_ns_ = 0;
    return true;
  }
  const std::int64_t now = monotonic_ns();
  held_ns_ = held_ns_ == 0 ? now : held_ns_;
  if (held_long(now)) {
    return true;
  }
  if (!held_) {
    held_ = true;
    shared_->held.push_back(this);
  }
  return false;
}

bool Lane::held_long(std::int64_t now_ns) const {
  return now_ns - held_ns_ >= yield_ns();
}

std::int64_t Lane::yield_ns() const {
  return shared_->options.yield_ms * 1'000'000;
}

bool Lane::let_go(std::int64_t now_ns) {
  if (bulk_.outranked(yield_ns()) && !held_long(now_ns)) {
    return false;
  }
  held_ = false;
  mark_active();
  return true;
}

// What is in a socket cannot be overtaken any more.
void Lane::limit_sockets() {
  if (limited_) {
    return;
  }
  limited_ = true;
  for (const std::unique_ptr<Flow>& flow : flows_) {
    if (flow->fd.valid()) {
      limit_unsent(flow->fd, kUnsentOfPriorities);
    }
  }
}

void Lane::finish_control(Control* control) {
  const FrameType type = frame_type(control->header);
  notices_ -= type == FrameType::kNotice ? 1U : 0U;
  freed_queued_ &= type != FrameType::kFreed;
  const std::span<const std::byte> payload(control->payload.get(), control->payload_bytes);
  if (wide_) {
    number(&control->header);
  }
  finish_header(&control->header, payload);
  if (wide_) {
    keep(control->header, payload);
  }
}

// As far as the socket takes it at once. On every flow, for nobody knows which is read last.
void Lane::say_goodbye(Flow* flow) {
  if (flow->blocked || flow->write_failed || flow->writer.full()) {
    return;
  }
  FrameHeader header = make_header(FrameType::kGoodbye, {}, {});
  header.chunk = static_cast<std::uint32_t>(flow_count());
  finish_header(&header, {});
  flow->writer.add(header, {}, nullptr);
  write_batch(flow);
}

void Lane::add_eager(Flow* flow, Outgoing* out) {
  FrameHeader header = make_header(FrameType::kEager, out->tag, out->info);
  const std::span<const std::byte> payload(out->data, out->bytes);
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.message_bytes = out->bytes;
  if (wide_) {
    number(&header);
  }
  finish_header(&header, payload);
  if (wide_) {
    keep(header, payload);
  }
  out->queued = false;
  out->offset = out->bytes;
  ++out->frames;
  eager_run_ += kHeaderBytes + payload.size();
  flow->writer.add(header, payload, out);
}

// One chunk; the message goes to the end of its queue, so that all of a priority get equal shares.
void Lane::add_chunk(Flow* flow, Outgoing* out) {
  if (out->chunk == 0) {
    out->chunk_bytes = chunk_bytes_for(*out, flows_.size());
  }
  std::uint32_t number = out->chunk;
  if (out->again.empty()) {
    ++out->chunk;
  } else {
    number = out->again.back();
    out->again.pop_back();
  }
  FrameHeader header = make_header(FrameType::kChunk, out->tag, out->info);
  const std::size_t offset = std::size_t{number} * out->chunk_bytes;
  const std::size_t bytes = std::min<std::size_t>(out->chunk_bytes, out->bytes - offset);
  const std::span<const std::byte> payload(out->data + offset, bytes);
  header.payload_bytes = static_cast<std::uint32_t>(bytes);
  header.message_bytes = out->bytes;
  header.offset = offset;
  header.chunk = number;
  header.rail = flow->number;
  if (wide_) {
    header.flags |= kFlagWantsAck;
    count_waiting(out->wants_ack ? 0 : 1);
    out->wants_ack = true;
    out->flows.resize(std::max<std::size_t>(out->flows.size(), out->chunk));
    out->flows[number] = flow->number;
  }
  finish_header(&header, payload);
  out->offset = std::max(out->offset, offset + bytes);
  ++out->frames;
  out->queued = out->offset < out->bytes || !out->again.empty();
  if (out->queued) {
    bulk_.push(out);
  }
  eager_run_ = 0;
  held_ns_ = 0;
  flow->writer.add(header, payload, out);
}

// What every frame carries. The header must not change afterwards.
void Lane::finish_header(FrameHeader* header, std::span<const std::byte> payload) {
  header->sender = static_cast<std::uint32_t>(shared_->options.rank);
  header->newest = newest_;
  header->freed = freed_;
  header->acked = received_;
  header->state = frame_type(*header) == FrameType::kGoodbye ? kStateLeaving : kStateRunning;
  freed_told_ = freed_;
  received_told_ = received_;
  if (shared_->options.checksums) {
    seal(header, payload);
  }
}

void Lane::on_written(Outgoing* out) {
  --out->frames;
  if (out->frames == 0 && !out->queued && !out->wants_ack) {
    complete_send(out);
  }
}

}  // namespace isthmus::tcp
