#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/log.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/sockets.h"

namespace isthmus::tcp {
namespace {

// Numbered frames after which the sender is told, when no frame of ours does it anyway.
constexpr std::uint32_t kReceivedTold = 64;

// Numbers wrap: whether `a` is `b` or came before it.
bool not_after(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) <= 0;
}

}  // namespace

void Lane::number(FrameHeader* header) {
  if (is_numbered(frame_type(*header))) {
    numbered_ += numbered_ + 1 == 0 ? 2 : 1;  // 0 means none
    header->chunk = numbered_;
  }
}

void Lane::keep(const FrameHeader& header, std::span<const std::byte> payload) {
  if (is_numbered(frame_type(header))) {
    kept_.push_back({header, {payload.begin(), payload.end()}});
  }
}

// An eager message that was taken back before a byte of it was sent.
void Lane::forget_kept(const Outgoing& out) {
  std::erase_if(kept_, [&](const Kept& each) {
    return frame_type(each.header) == FrameType::kEager && frame_tag(each.header) == out.tag;
  });
}

void Lane::on_acked(std::uint32_t acked) {
  if (acked == 0 || !not_after(acked, numbered_)) {
    return;
  }
  if (peer_acked_ == 0 || not_after(peer_acked_, acked)) {
    peer_acked_ = acked;
  }
  while (!kept_.empty() && not_after(kept_.front().header.chunk, acked)) {
    kept_.pop_front();
  }
}

// False when the frame came before.
bool Lane::begin_numbered(Flow* flow) {
  const FrameHeader& header = flow->reader.header();
  if (!is_numbered(frame_type(header)) || header.chunk == 0) {
    return true;
  }
  if (received_ != 0 && not_after(header.chunk, received_)) {
    flow->skip = true;
    return false;
  }
  // The peer repeats on this flow what it had begun on one that it lost.
  for (const std::unique_ptr<Flow>& other : flows_) {
    if (other.get() != flow && other->numbered) {
      abandon_frame(other.get());
      other->skip = true;
    }
  }
  flow->numbered = true;
  return true;
}

void Lane::end_numbered(Flow* flow) {
  flow->numbered = false;
  if (flow->skip) {
    return;
  }
  const bool first = received_ == 0;
  received_ = flow->reader.header().chunk;
  // The first ack tells the peer that all from before the numbers has arrived too.
  if ((first || received_ - received_told_ >= kReceivedTold) && !freed_queued_) {
    freed_queued_ = true;
    push_control(FrameType::kFreed, {}, {}, 0);
    mark_active();
  }
}

// What was read of a frame does not count.
void Lane::abandon_frame(Flow* flow) {
  Incoming* in = flow->current;
  flow->current = nullptr;
  flow->numbered = false;
  if (flow->reader.payload_left() == 0) {
    return;
  }
  const FrameHeader& header = flow->reader.header();
  flow->reader.place(nullptr);
  if (frame_type(header) != FrameType::kEager) {
    return;
  }
  eager_received_ -= eager_cost(header.payload_bytes);
  if (in == nullptr || in->state != Incoming::State::kStoring) {
    return;
  }
  if (!in->posted) {
    forget_recv(in);
    return;
  }
  shared_->blocks.give_back(in->stored, in->stored_bytes);
  in->stored = nullptr;
  in->state = Incoming::State::kPosted;
}

// Whether the lane can go on without this flow: another one is there, and of what this one carried
// before there were numbers, all has arrived.
bool Lane::dispensable(const Flow& flow) const {
  if (!wide_ || over_ || (peer_acked_ == 0 && flow.number == 0)) {
    return false;
  }
  bool other = false;
  for (const std::unique_ptr<Flow>& each : flows_) {
    if (each->farewell) {
      return false;  // the peer leaves: this one was its end
    }
    other |= each.get() != &flow && each->fd.valid() && !each->over && !each->write_failed;
  }
  return other;
}

void Lane::drop_flow(Flow* flow, const std::string& why) {
  const std::string text = fmt::format("{}: {}", peer_name(flow->fd), why);
  log(LogLevel::kWarn, "tcp", "flow {} to rank {} at {} is lost; the others carry on", flow->number,
      peer_, text);
  if (flow->numbered) {
    abandon_frame(flow);
  }
  flow->current = nullptr;
  set_blocked(flow, false);
  flow->over = true;
  flow->fd.reset();
  lost_.emplace_back(flow->number, text);
  // Eager messages are kept, chunks are known by their flow.
  flow->writer.drop_all([this](Outgoing* out) { on_written(out); });
  send_again(flow->number);
  if (flow == main_) {
    change_main();
  }
  shared_->flow_lost(peer_, flow->number);
  mark_active();
}

// Chunks that the lost flow had taken, of messages that are not acknowledged.
void Lane::send_again(std::uint8_t flow) {
  for (Outgoing* out : outgoing_.entries()) {
    if (!out->wants_ack) {
      continue;
    }
    for (std::uint32_t chunk = 0; chunk < out->flows.size(); ++chunk) {
      if (out->flows[chunk] == flow) {
        out->flows[chunk] = kNoFlow;
        out->again.push_back(chunk);
      }
    }
    if (!out->queued && !out->again.empty()) {
      out->queued = true;
      bulk_.push(out);
    }
  }
}

// Another flow carries what has an order from here on, beginning with all that the peer may not
// have: it knows by the numbers what it has.
void Lane::change_main() {
  const auto next = std::find_if(flows_.begin(), flows_.end(), [](const auto& each) {
    return each->fd.valid() && !each->over && !each->write_failed;
  });
  std::iter_swap(flows_.begin(), next);
  main_ = flows_[0].get();
  control_.drop_if([](const Control& control) { return control.again; });
  Fifo<Control> fresh;
  for (const Kept& kept : kept_) {
    Control control;
    control.header = kept.header;
    control.again = true;
    control.payload_bytes = kept.payload.size();
    control.payload = std::make_unique_for_overwrite<std::byte[]>(kept.payload.size());
    std::copy(kept.payload.begin(), kept.payload.end(), control.payload.get());
    fresh.push(std::move(control));
  }
  while (!control_.empty()) {
    fresh.push(control_.pop());
  }
  control_ = std::move(fresh);
}

void Lane::check_rails() {
  for (std::size_t i = 0; i < flows_.size() && wide_ && !over_; ++i) {
    Flow* flow = flows_[i].get();
    if (flow->fd.valid() && dispensable(*flow) && stalled(flow->fd)) {
      drop_flow(flow, "its machine does not answer there");
    }
  }
}

// For the end of an error: what else was lost.
std::string Lane::lost_rails() const {
  std::string out;
  for (const auto& [number, why] : lost_) {
    out += fmt::format("{} {}", out.empty() ? "; lost before:" : ",", why);
  }
  return out;
}

}  // namespace isthmus::tcp
