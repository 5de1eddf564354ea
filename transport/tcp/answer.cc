#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/socket.h>

#include "base/log.h"
#include "transport/tcp/connector.h"

namespace isthmus::tcp {
namespace {

// Dropped strangers that are reported as warnings; a port scanner must not fill the log.
constexpr int kStrangersLogged = 8;

}  // namespace

Hello Connector::our_hello(int expected) const {
  Hello hello;
  hello.incarnation = shared_->options.incarnation;
  hello.config = shared_->options.config;
  hello.sender = static_cast<std::uint32_t>(shared_->options.rank);
  hello.expected = static_cast<std::uint32_t>(expected);
  hello.ranks = static_cast<std::uint32_t>(shared_->options.size);
  return hello;
}

FrameHeader Connector::header_of(const Handshake& handshake) const {
  FrameHeader header;
  std::memcpy(&header, handshake.in.data(), kHeaderBytes);
  return header;
}

// Handshake frames are so small that the empty buffer of a new socket takes them whole; a socket
// that does not is broken.
bool Connector::send_frame(const Handshake& handshake, FrameType type, std::uint32_t reason,
                           std::span<const std::byte> payload) {
  std::array<std::byte, kHeaderBytes + kRejectTextMax> out{};
  FrameHeader header = make_header(type, {}, {});
  header.sender = static_cast<std::uint32_t>(shared_->options.rank);
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.chunk = reason;
  header.rail = handshake.flow;
  if (shared_->options.checksums) {
    seal(&header, payload);
  }
  std::memcpy(out.data(), &header, kHeaderBytes);
  if (!payload.empty()) {
    std::memcpy(out.data() + kHeaderBytes, payload.data(), payload.size());
  }
  const std::size_t bytes = kHeaderBytes + payload.size();
  return ::send(handshake.fd.get(), out.data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes);
}

// Reads no byte beyond the frame: what follows belongs to the lane. True when it is complete.
bool Connector::read_frame(int slot) {
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  for (;;) {
    std::size_t need = kHeaderBytes;
    if (handshake.got >= kHeaderBytes) {
      const FrameHeader header = header_of(handshake);
      if (const std::optional<std::string> fault = header_fault(header)) {
        on_broken(slot, *fault);
        return false;
      }
      if (header.payload_bytes > kRejectTextMax) {
        on_broken(slot, fmt::format("a frame of {} bytes came before the handshake was over",
                                    header.payload_bytes));
        return false;
      }
      need += header.payload_bytes;
      if (handshake.got == need) {
        return true;
      }
    }
    ssize_t got = 0;
    do {
      got = ::recv(handshake.fd.get(), handshake.in.data() + handshake.got, need - handshake.got,
                   MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
      handshake.got += static_cast<std::size_t>(got);
      continue;
    }
    if (got < 0 && errno == EAGAIN) {
      return false;
    }
    on_broken(slot, got == 0 ? "the connection was closed during the handshake (another job or an "
                               "earlier run of this one?)"
                             : std::strerror(errno));
    return false;
  }
}

void Connector::on_bytes(int slot) {
  if (!read_frame(slot)) {
    return;
  }
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  const FrameHeader header = header_of(handshake);
  handshake.got = 0;
  switch (handshake.phase) {
    case Phase::kGreeted:
      on_answer(slot);
      return;
    case Phase::kStranger:
      if (frame_type(header) == FrameType::kHello) {
        on_hello(slot);
        return;
      }
      break;
    case Phase::kWelcomed:
      if (frame_type(header) == FrameType::kStart && handshake.flow > 0) {
        finish_flow(slot);
        return;
      }
      if (frame_type(header) == FrameType::kStart) {
        const int peer = handshake.peer;
        Fd fd = std::move(handshake.fd);
        finish_meeting(peer, std::move(fd));
        return;
      }
      break;
    case Phase::kParked:
    case Phase::kConnecting:
      break;
  }
  on_broken(slot, fmt::format("a frame of type {} came during the handshake", header.type));
}

// This connection comes to nothing.
void Connector::on_broken(int slot, const std::string& what) {
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  switch (handshake.phase) {
    case Phase::kConnecting:
    case Phase::kGreeted:
      dial_failed(slot, EPROTO, what);
      return;
    case Phase::kStranger: {
      // One that said nothing is mostly a peer that met us on another connection meanwhile.
      static std::atomic<int> logged{0};
      const bool first =
          handshake.got > 0 && logged.fetch_add(1, std::memory_order_relaxed) < kStrangersLogged;
      log(first ? LogLevel::kWarn : LogLevel::kDebug, "tcp",
          "dropped a connection from {} that is not of this job: {}", peer_name(handshake.fd),
          what);
      const FrameHeader header = header_of(handshake);
      const bool kin = handshake.got >= kHeaderBytes &&
                       (header.magic == kFrameMagicSwapped ||
                        (header.magic == kFrameMagic && header.version != kWireVersion));
      if (kin) {
        reject(slot, kRejectForGood,
               fmt::format("Rank {} (wire version {}) cannot read the hello of its caller: {}.",
                           shared_->options.rank, kWireVersion, what));
      } else {
        drop_slot(slot);
      }
      return;
    }
    case Phase::kParked:
    case Phase::kWelcomed:
      break;
  }
  const int peer = handshake.peer;
  const bool further = handshake.flow > 0;
  log(LogLevel::kDebug, "tcp", "a call from rank {} failed: {}", peer, what);
  drop_slot(slot);
  if (further) {
    return;
  }
  Meeting& meeting = meetings_[peer];
  meeting.accepted = -1;
  if (!meeting.wanted && meeting.dialled < 0) {
    meetings_.erase(peer);
  }
}

void Connector::reject(int slot, std::uint32_t reason, const std::string& sentence) {
  const std::string_view text = std::string_view(sentence).substr(0, kRejectTextMax);
  send_frame(*slots_[static_cast<std::size_t>(slot)], FrameType::kReject, reason,
             std::as_bytes(std::span(text.data(), text.size())));
  drop_slot(slot);
}

void Connector::welcome(int slot) {
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  const Hello hello = our_hello(handshake.peer);
  handshake.phase = Phase::kWelcomed;
  if (!send_frame(handshake, FrameType::kWelcome, 0, std::as_bytes(std::span(&hello, 1)))) {
    on_broken(slot, "the connection broke");
  }
}

// A caller has said who it is.
void Connector::on_hello(int slot) {
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  Hello theirs;
  std::memcpy(&theirs, handshake.in.data() + kHeaderBytes, sizeof(theirs));
  if (theirs.incarnation != shared_->options.incarnation) {
    // No sentence for strangers.
    on_broken(slot, "its nonce is of another job or of another run of this one");
    return;
  }
  if (const std::optional<std::string> fault = hello_fault(our_hello(-1), theirs)) {
    const bool elsewhere = theirs.version == kWireVersion &&
                           theirs.expected != static_cast<std::uint32_t>(shared_->options.rank);
    log(LogLevel::kError, "tcp", "{}", *fault);
    reject(slot, elsewhere ? kRejectOtherAddress : kRejectForGood, *fault);
    return;
  }
  const int peer = static_cast<int>(theirs.sender);
  if (const FrameHeader header = header_of(handshake); header.rail > 0) {
    on_flow_hello(slot, peer, header.rail);
    return;
  }
  const Lane& lane = lane_of_(peer);
  if (lane.over() || lane.connected()) {
    reject(slot, lane.over() ? kRejectForGood : kRejectNotNow,
           fmt::format("Rank {} {} rank {}.", shared_->options.rank,
                       lane.over() ? "has ended its connection with" : "is connected already to",
                       peer));
    return;
  }
  --strangers_;
  handshake.peer = peer;
  handshake.deadline_ns = Deadline::kNever;
  handshake.phase = Phase::kParked;
  Meeting& meeting = meetings_[peer];
  drop_slot(meeting.accepted);  // the peer calls again: its earlier call is void
  meeting.accepted = slot;
  const bool greeted = meeting.dialled >= 0 &&
                       slots_[static_cast<std::size_t>(meeting.dialled)]->phase == Phase::kGreeted;
  if (meeting.dialled >= 0 && !greeted) {
    drop_slot(meeting.dialled);  // the peer does not know of that call yet
    meeting.dialled = -1;
  }
  // When both call each other the lower rank decides: it leaves the caller waiting until its own
  // call is answered or has failed. The higher rank welcomes, and keeps its own call until one of
  // both is taken into use.
  if (!greeted || shared_->options.rank > peer) {
    welcome(slot);
  }
}

}  // namespace isthmus::tcp
