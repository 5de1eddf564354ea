#include <algorithm>
#include <cstring>

#include "base/prefetch.h"
#include "transport/notice_codec.h"
#include "transport/shm/shm_lane.h"

namespace isthmus::shm {
namespace {

// Small messages go before chunks, but after so many bytes of them a chunk has its turn.
constexpr std::size_t kEagerRunBytes = std::size_t{64} << 10;
// Notices that wait for room; more are dropped: they are best effort.
constexpr std::size_t kNoticesMax = 64;
// A message goes in about so many chunks, within the bounds below and the piece's: the receiver
// copies one out while the sender copies the next in.
constexpr std::size_t kChunksWanted = 8;
constexpr std::size_t kChunkLeast = 8192;
constexpr std::size_t kChunkAlign = 4096;

// Copies into lines that the reader's cache holds from the lap before: they are asked for 16 lines
// ahead of the stores.
void copy_in(std::byte* dst, const std::byte* src, std::size_t bytes) {
  constexpr std::size_t kAhead = 1024;
  prefetch_for_write(dst, std::min(bytes, kAhead));
  std::size_t done = 0;
  for (; bytes - done > kAhead; done += kAhead) {
    prefetch_for_write(dst + done + kAhead, std::min(bytes - done - kAhead, kAhead));
    std::memcpy(dst + done, src + done, kAhead);
  }
  std::memcpy(dst + done, src + done, bytes - done);
}

}  // namespace

void ShmLane::push_control(FrameType type, const Tag& tag, const OperationInfo& info,
                           std::uint64_t message_bytes, std::uint8_t flags) {
  if (!over_) {
    control_.push({.type = type,
                   .flags = flags,
                   .tag = tag,
                   .info = info,
                   .message_bytes = message_bytes,
                   .text = {}});
  }
}

// Tells the sender that its message and the buffer `in` differ in size.
void ShmLane::refuse(Incoming* in, std::uint8_t flags) {
  push_control(FrameType::kRefuse, in->tag, in->info, in->bytes, flags);
}

void ShmLane::send_notice(const Notice& notice) {
  if (over_ || notices_ >= kNoticesMax) {
    return;
  }
  Control control;
  control.text = encode_notice(notice);
  control_.push(std::move(control));
  ++notices_;
  pump_output(kEagerRunBytes);
}

// Eager data of this size has left the pool, or never needed it.
void ShmLane::free_eager(std::size_t bytes) {
  freed_ += eager_cost(bytes);
  places_.out.header->freed.store(freed_, std::memory_order_release);
}

void ShmLane::ring_peer() const {
  if (places_.bell->sleeping.load(std::memory_order_seq_cst) != 0) {
    ShmNode::ring(places_.bell_fd);
  }
}

void ShmLane::set_blocked(bool blocked) {
  if (blocked_ != blocked) {
    blocked_ = blocked;
    places_.out.header->blocked.store(blocked ? 1 : 0, std::memory_order_seq_cst);
  }
}

// Writes what waits, at most about `budget` bytes. True when anything was written.
bool ShmLane::pump_output(std::size_t budget) {
  if (over_) {
    return false;
  }
  bool moved = false;
  std::size_t used = 0;
  while (has_output() && used < budget) {
    // No room: look once more after the peer was told, so that its answer is not missed.
    if (!write_next(&used)) {
      const bool told = blocked_;
      set_blocked(true);
      if (told || !write_next(&used)) {
        break;
      }
    }
    moved = true;
  }
  if (!has_output()) {
    set_blocked(false);
  }
  if (moved) {
    ring_peer();
  }
  return moved;
}

// One frame, and its bytes added to `used`. False when there is no room for it.
bool ShmLane::write_next(std::size_t* used) {
  if (!control_.empty()) {
    *used += sizeof(LaneCell) + control_.front().text.size();
    return write_control();
  }
  if (!eager_.empty() && (bulk_.empty() || eager_run_ < kEagerRunBytes)) {
    Outgoing* out = eager_.front();
    if (!write_eager(out->tag, out->info, {out->data, out->bytes})) {
      return false;
    }
    *used += sizeof(LaneCell) + out->bytes;
    eager_.pop();
    complete_send(out);
    return true;
  }
  Outgoing* out = bulk_.front();
  const std::size_t before = out->offset;
  if (!write_chunk(out)) {
    return false;
  }
  *used += sizeof(LaneCell) + out->offset - before;
  bulk_.pop();
  if (out->offset < out->bytes) {
    bulk_.push(out);  // to the end of the queue, so that all get equal shares
  } else {
    complete_send(out);
  }
  return true;
}

bool ShmLane::write_control() {
  const Control& control = control_.front();
  if (!writer_.room(control.text.size())) {
    return false;
  }
  FrameBody body;
  body.info = control.info;
  body.message_bytes = control.message_bytes;
  if (!control.text.empty()) {
    std::memcpy(writer_.place(control.text.size(), &body), control.text.data(),
                control.text.size());
    --notices_;
  }
  writer_.put(control.type, control.flags, control.tag, &body, sizeof body);
  control_.pop();
  return true;
}

bool ShmLane::write_eager(const Tag& tag, const OperationInfo& info,
                          std::span<const std::byte> data) {
  if (data.size() <= kLinePayloadBytes && sent_info_ == info) {
    if (!writer_.room(0)) {
      return false;
    }
    writer_.put(FrameType::kInline, static_cast<std::uint8_t>(data.size()), tag, data.data(),
                data.size());
  } else {
    if (!writer_.room(data.size())) {
      return false;
    }
    FrameBody body;
    body.info = info;
    body.message_bytes = data.size();
    if (!data.empty()) {
      copy_in(writer_.place(data.size(), &body), data.data(), data.size());
    }
    writer_.put(FrameType::kEager, 0, tag, &body, sizeof body);
    sent_info_ = info;
  }
  eager_run_ += sizeof(LaneCell) + data.size();
  return true;
}

bool ShmLane::write_chunk(Outgoing* out) {
  const std::size_t wanted =
      (out->bytes / kChunksWanted + kChunkAlign - 1) / kChunkAlign * kChunkAlign;
  const std::size_t bytes =
      std::min(std::clamp(wanted, kChunkLeast, chunk_bytes_), out->bytes - out->offset);
  if (!writer_.room(bytes)) {
    return false;
  }
  FrameBody body;
  body.info = out->info;
  body.message_bytes = out->bytes;
  body.offset = out->offset;
  if (bytes != 0) {
    copy_in(writer_.place(bytes, &body), out->data + out->offset, bytes);
  }
  writer_.put(FrameType::kChunk, 0, out->tag, &body, sizeof body);
  out->offset += bytes;
  eager_run_ = 0;
  return true;
}

}  // namespace isthmus::shm
