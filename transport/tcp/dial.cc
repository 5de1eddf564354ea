#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "transport/tcp/connector.h"

namespace isthmus::tcp {
namespace {

constexpr std::int64_t kNsPerMs = 1'000'000;
// An address that does not answer at all is left for the next one: two SYNs are lost by then.
constexpr std::int64_t kCandidateNs = 2500 * kNsPerMs;
constexpr std::int64_t kBackoffLeastNs = 10 * kNsPerMs;
constexpr std::int64_t kBackoffMostNs = 1000 * kNsPerMs;
// A peer listens from before its address is known until it ends. When its machine says so often,
// over 310 ms, that nobody listens, its process is gone.
constexpr int kRefusedRounds = 6;

// Failures that say nothing about the peer: this host has no way to that address.
bool no_route(int sys_errno) {
  return sys_errno == ENETUNREACH || sys_errno == EHOSTUNREACH || sys_errno == EAFNOSUPPORT ||
         sys_errno == EADDRNOTAVAIL || sys_errno == ENETDOWN;
}

}  // namespace

// Tries the next candidates until one is under way.
void Connector::dial(int peer, Meeting* meeting) {
  while (meeting->next < meeting->order.size()) {
    const Candidate& candidate = meeting->order[meeting->next++];
    Result<Fd> fd = start_connect(candidate);
    if (fd.ok()) {
      const int slot = new_slot(std::move(*fd), Phase::kConnecting, EPOLLOUT);
      if (slot >= 0) {
        Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
        handshake.peer = peer;
        handshake.deadline_ns = monotonic_ns() + kCandidateNs;
        meeting->dialled = slot;
        return;
      }
      meeting->refused_only = false;
      meeting->last = "no descriptor could be watched";
      continue;
    }
    const int sys_errno = fd.error().sys_errno;
    meeting->last = fd.error().message;
    meeting->refused += sys_errno == ECONNREFUSED ? 1 : 0;
    meeting->refused_only &= sys_errno == ECONNREFUSED || no_route(sys_errno);
  }
  end_round(peer, meeting);
}

void Connector::dial_due(int peer, Meeting* meeting, std::int64_t now) {
  if (now >= meeting->retry_ns) {
    dial(peer, meeting);
  }
}

void Connector::on_connected(int slot) {
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  if (const int failure = finish_connect(handshake.fd); failure != 0) {
    dial_failed(slot, failure, std::strerror(failure));
    return;
  }
  const Hello hello = our_hello(handshake.peer);
  const std::uint64_t key =
      watch_key(Watched::kHandshake, handshake.generation, static_cast<std::uint32_t>(slot));
  const bool sent =
      send_frame(handshake, FrameType::kHello, 0, std::as_bytes(std::span(&hello, 1)));
  if (!sent || !watch(handshake.fd, EPOLLIN | EPOLLRDHUP, key).ok()) {
    dial_failed(slot, ECONNRESET, "the connection broke during the handshake");
    return;
  }
  // From here on the operation's own time limit decides: the machine is there, and a process that
  // computes for minutes without looking at its sockets is not dead.
  // A further flow can be called again, and its rail may have been cut meanwhile.
  handshake.phase = Phase::kGreeted;
  handshake.deadline_ns =
      handshake.flow > 0 ? monotonic_ns() + kFlowAnswerNs : std::int64_t{Deadline::kNever};
}

void Connector::dial_failed(int slot, int sys_errno, std::string what) {
  const int peer = slots_[static_cast<std::size_t>(slot)]->peer;
  if (slots_[static_cast<std::size_t>(slot)]->flow > 0) {
    flow_failed(slot, what);
    return;
  }
  Meeting& meeting = meetings_[peer];
  if (!meeting.order.empty() && meeting.next > 0) {
    what = to_string(meeting.order[meeting.next - 1]) + ": " + what;
  }
  drop_slot(slot);
  meeting.dialled = -1;
  meeting.refused_only &= sys_errno == ECONNREFUSED || no_route(sys_errno);
  attempt_failed(peer, &meeting, sys_errno == ECONNREFUSED, std::move(what));
}

void Connector::attempt_failed(int peer, Meeting* meeting, bool refused, std::string what) {
  log(LogLevel::kDebug, "tcp", "a call to rank {} failed: {}", peer, what);
  meeting->last = std::move(what);
  meeting->refused += refused ? 1 : 0;
  if (meeting->accepted >= 0) {
    welcome_next(peer);
  } else {
    dial(peer, meeting);
  }
}

void Connector::end_round(int peer, Meeting* meeting) {
  const std::int64_t now = monotonic_ns();
  meeting->refused_rounds =
      meeting->refused > 0 && meeting->refused_only ? meeting->refused_rounds + 1 : 0;
  if (meeting->refused_rounds >= kRefusedRounds) {
    give_up(peer,
            {.code = Code::kPeerDead,
             .culprit = peer,
             .message = fmt::format("World rank {} refuses connections ({}): its process is gone.",
                                    peer, meeting->last)});
    return;
  }
  if (now >= meeting->deadline_ns) {
    give_up(
        peer,
        {.code = Code::kTimeout,
         .culprit = peer,
         .message = fmt::format(
             "World rank {} could not be reached within {} s at any of its {} addresses; the last "
             "attempt: {}. Check firewalls and ISTHMUS_IFACE.",
             peer, shared_->options.connect_timeout_ms / 1000, meeting->order.size(),
             meeting->last)});
    return;
  }
  meeting->backoff_ns = std::clamp(meeting->backoff_ns * 2, kBackoffLeastNs, kBackoffMostNs);
  meeting->retry_ns = now + meeting->backoff_ns;
  meeting->next = 0;
  meeting->refused = 0;
  meeting->refused_only = true;
}

// The peer's answer to our hello is complete.
void Connector::on_answer(int slot) {
  Handshake& handshake = *slots_[static_cast<std::size_t>(slot)];
  if (handshake.flow > 0) {
    on_flow_answer(slot);
    return;
  }
  const int peer = handshake.peer;
  const FrameHeader header = header_of(handshake);
  const std::byte* payload = handshake.in.data() + kHeaderBytes;
  if (frame_type(header) == FrameType::kReject) {
    const std::string sentence(reinterpret_cast<const char*>(payload), header.payload_bytes);
    if (header.chunk == kRejectForGood) {
      Error error{
          .code = Code::kProtocol,
          .culprit = peer,
          .message = fmt::format("World rank {} refused the connection: {}", peer, sentence)};
      log(LogLevel::kError, "tcp", "{}", error.message);
      give_up(peer, std::move(error));
    } else {
      dial_failed(slot, EPROTO, sentence);
    }
    return;
  }
  if (frame_type(header) != FrameType::kWelcome) {
    dial_failed(slot, EPROTO, "another program answers there");
    return;
  }
  Hello theirs;
  std::memcpy(&theirs, payload, sizeof(theirs));
  if (theirs.incarnation != shared_->options.incarnation ||
      theirs.sender != static_cast<std::uint32_t>(peer)) {
    dial_failed(slot, EPROTO, "another job or another rank answers there");
    return;
  }
  if (const std::optional<std::string> fault = hello_fault(our_hello(peer), theirs)) {
    log(LogLevel::kError, "tcp", "{}", *fault);
    give_up(peer, {.code = Code::kProtocol, .culprit = peer, .message = *fault});
    return;
  }
  if (!send_frame(handshake, FrameType::kStart, 0, {})) {
    dial_failed(slot, ECONNRESET, "the connection broke during the handshake");
    return;
  }
  Fd fd = std::move(handshake.fd);
  finish_meeting(peer, std::move(fd));
}

}  // namespace isthmus::tcp
