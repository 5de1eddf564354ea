#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "transport/tcp/connector.h"

namespace isthmus::tcp {
namespace {

constexpr std::int64_t kNsPerMs = 1'000'000;
// How long a rail may leave a call unanswered: one SYN that is lost is sent again after 1 s.
constexpr std::int64_t kCallNs = 2500 * kNsPerMs;
constexpr std::int64_t kBackoffLeastNs = 20 * kNsPerMs;
constexpr std::int64_t kBackoffMostNs = 1000 * kNsPerMs;

}  // namespace

void Connector::widen(int peer) {
  const auto known = addresses_.find(peer);
  const Lane& lane = lane_of_(peer);
  if (calls_.contains(peer) || known == addresses_.end() || !lane.connected()) {
    return;
  }
  const std::optional<Ends> ends = ends_of(lane.first_socket());
  if (!ends) {
    return;
  }
  const InterfaceFilter filter = InterfaceFilter::parse(shared_->options.interfaces);
  const std::vector<Rail> rails = rails_between(address_, known->second, ends->near, ends->far,
                                                !filter.names.empty() && !filter.exclude);
  const auto each = static_cast<std::size_t>(std::max(1, shared_->options.flows));
  const std::size_t flows = std::min(kFlowsMax, rails.size() * each);
  std::vector<FlowCall>& calls = calls_[peer];
  for (std::size_t number = 1; number < flows; ++number) {
    FlowCall call;
    call.number = static_cast<std::uint8_t>(number);
    call.rail = rails[number % rails.size()];
    calls.push_back(call);
  }
  for (FlowCall& call : calls) {
    call_flow(peer, &call);
  }
  if (!calls.empty() && flows < kFlowsMax) {
    FlowCall spare;  // called when the first connection is lost
    spare.number = static_cast<std::uint8_t>(flows);
    spare.rail = rails[0];
    spare.settled = true;
    calls.push_back(spare);
  }
  arm_timer();
}

void Connector::flow_lost(int peer, std::uint8_t number) {
  const auto found = calls_.find(peer);
  if (found == calls_.end() || shared_->options.rank > peer) {
    return;  // the lower rank calls
  }
  std::vector<FlowCall>& calls = found->second;
  FlowCall& call = number == 0 || number > calls.size() ? calls.back() : calls[number - 1U];
  call.settled = false;
  call.backoff_ns = 0;
  call.retry_ns = monotonic_ns() + kBackoffLeastNs;
  arm_timer();
}

void Connector::call_flow(int peer, FlowCall* call) {
  call->backoff_ns = std::clamp(call->backoff_ns * 2, kBackoffLeastNs, kBackoffMostNs);
  call->retry_ns = monotonic_ns() + call->backoff_ns;
  Result<Fd> fd = start_connect(call->rail.to, call->rail.bound ? &call->rail.from : nullptr);
  if (!fd.ok()) {
    log(LogLevel::kDebug, "tcp", "rail {} to rank {}: {}", to_string(call->rail), peer,
        fd.error().message);
    return;
  }
  const int slot = new_slot(std::move(*fd), Phase::kConnecting, EPOLLOUT);
  if (slot < 0) {
    return;
  }
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  handshake.peer = peer;
  handshake.flow = call->number;
  handshake.deadline_ns = monotonic_ns() + kCallNs;
  call->slot = slot;
  ++flow_slots_;
}

void Connector::call_due_flows(std::int64_t now) {
  std::erase_if(calls_, [&](const auto& entry) { return lane_of_(entry.first).over(); });
  for (auto& [peer, calls] : calls_) {
    for (FlowCall& call : calls) {
      if (!call.settled && call.slot < 0 && now >= call.retry_ns) {
        call_flow(peer, &call);
      }
    }
  }
}

// A flow waits to be called again.
bool Connector::flows_missing() const {
  return std::any_of(calls_.begin(), calls_.end(), [](const auto& entry) {
    return std::any_of(entry.second.begin(), entry.second.end(),
                       [](const FlowCall& call) { return !call.settled && call.slot < 0; });
  });
}

// Of a flow that this rank calls, or null: the peer calls it, or its lane is over.
Connector::FlowCall* Connector::call_of(const Handshake& handshake) {
  const auto found = calls_.find(handshake.peer);
  if (found == calls_.end() || handshake.flow == 0 || handshake.flow > found->second.size() ||
      shared_->options.rank > handshake.peer) {
    return nullptr;
  }
  return &found->second[handshake.flow - 1U];
}

void Connector::flow_failed(int slot, const std::string& what) {
  const Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  if (FlowCall* call = call_of(handshake)) {
    call->slot = -1;
    call->retry_ns = monotonic_ns() + call->backoff_ns;
    log(LogLevel::kDebug, "tcp", "rail {} to rank {}, flow {}: {}", to_string(call->rail),
        handshake.peer, call->number, what);
  }
  drop_slot(slot);
  arm_timer();
}

void Connector::on_flow_answer(int slot) {
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  const FrameHeader header = header_of(handshake);
  const std::byte* payload = handshake.in.data() + kHeaderBytes;
  if (frame_type(header) == FrameType::kReject) {
    FlowCall* call = call_of(handshake);
    if (call != nullptr && header.chunk != kRejectNotNow) {
      call->settled = true;  // another rank answers there, or the peer wants no such flow
    }
    flow_failed(slot, std::string(reinterpret_cast<const char*>(payload), header.payload_bytes));
    return;
  }
  Hello theirs;
  std::memcpy(&theirs, payload, sizeof(theirs));
  const bool right = frame_type(header) == FrameType::kWelcome &&
                     theirs.incarnation == shared_->options.incarnation &&
                     !hello_fault(our_hello(handshake.peer), theirs) &&
                     theirs.sender == static_cast<std::uint32_t>(handshake.peer);
  if (!right) {
    flow_failed(slot, "another rank, job or program answers there");
  } else if (!send_frame(handshake, FrameType::kStart, 0, {})) {
    flow_failed(slot, "the connection broke during the handshake");
  } else {
    finish_flow(slot);
  }
}

// The lower rank calls for a further flow.
void Connector::on_flow_hello(int slot, int peer, std::uint8_t number) {
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  const Lane& lane = lane_of_(peer);
  if (lane.over() || number >= kFlowsMax || peer > shared_->options.rank) {
    reject(
        slot, kRejectForGood,
        fmt::format("Rank {} takes no flow {} from rank {}.", shared_->options.rank, number, peer));
    return;
  }
  if (!lane.connected()) {
    reject(slot, kRejectNotNow,
           fmt::format("Rank {} is not connected to rank {}.", shared_->options.rank, peer));
    return;
  }
  --strangers_;
  ++flow_slots_;
  handshake.peer = peer;
  handshake.flow = number;
  handshake.deadline_ns = monotonic_ns() + kFlowAnswerNs;
  welcome(slot);
}

// Both sides have said that they take it.
void Connector::finish_flow(int slot) {
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  const int peer = handshake.peer;
  const std::uint8_t number = handshake.flow;
  Fd fd = std::move(handshake.fd);
  if (FlowCall* call = call_of(handshake)) {
    call->slot = -1;
    call->settled = true;
    call->backoff_ns = 0;
  }
  drop_slot(slot);
  Lane& lane = lane_of_(peer);
  if (lane.over() || !lane.connected()) {
    return;
  }
  const Status watched = watch(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                               watch_key(Watched::kLane, number, static_cast<std::uint32_t>(peer)));
  if (watched.ok()) {
    lane.attach_flow(number, std::move(fd));
  } else {
    lane.end(watched.error(), true);
  }
  arm_timer();
}

}  // namespace isthmus::tcp
