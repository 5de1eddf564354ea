#include "plugins/nccl/send_comm.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "plugins/nccl/checksum.h"
#include "plugins/nccl/registry.h"
#include "plugins/nccl/report.h"
#include "transport/tcp/sockets.h"

namespace isthmus::nccl {
namespace {

constexpr std::uint8_t kNobody = 0xff;
// A message of at most this many bytes waits for others, if others are under way, so that all leave
// by one system call; a longer one gains nothing by that.
constexpr std::uint64_t kWaitBytesMax = 8 << 10;
// How often the clock is read while polling (20 ns each), and health looked at.
constexpr unsigned kClockEvery = 64;
constexpr std::int64_t kHealthNs = 100'000'000;
// Frames are this long when they are checked: hashed while they are in the cache.
constexpr std::uint64_t kCheckedFrameBytes = 256 << 10;
// A lost rail is called again after this; it doubles up to a second.
constexpr std::int64_t kBackoffFirstNs = 20'000'000;
constexpr std::int64_t kBackoffMaxNs = 1'000'000'000;

}  // namespace

SendComm::SendComm(Setup setup) : setup_(std::move(setup)), flows_(setup_.flows.size()) {
  flows_[0].fd = std::move(setup_.first);
  flows_[0].had_one = true;
  if (several()) {
    tcp::limit_unsent(flows_[0].fd, tcp::kUnsentOfFlows);
  }
  for (SendRequest& request : requests_) {
    request.comm = this;
  }
  moved_ns_ = monotonic_ns();
  registry_add(this);
}

SendComm::~SendComm() {
  registry_remove(this);
}

unsigned SendComm::live_flows() const {
  return static_cast<unsigned>(std::count_if(flows_.begin(), flows_.end(),
                                             [](const Flow& each) { return each.fd.valid(); }));
}

void SendComm::set_traffic_class(int dscp) {
  dscp_ = dscp;
  mark(flows_[0].fd);
}

// A network that does not take the mark carries the data all the same.
void SendComm::mark(const Fd& fd) const {
  if (dscp_ >= 0) {
    const int value = dscp_ << 2;
    ::setsockopt(fd.get(), IPPROTO_IP, IP_TOS, &value, sizeof(value));
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_TCLASS, &value, sizeof(value));
  }
}

Result<Request*> SendComm::post(const void* data, std::uint64_t bytes) {
  if (failure() != nullptr) {
    return *failure();
  }
  if (bytes > kMessageBytesMax) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("A message to {} has {} B; {} is the limit.", setup_.peer,
                                        bytes, kMessageBytesMax)};
  }
  SendRequest& request = slot(posted_);
  if (request.used) {
    return nullptr;
  }
  request.used = true;
  request.done = false;
  request.message = posted_;
  request.bytes = bytes;
  request.data = static_cast<const std::byte*>(data);
  request.part_bytes =
      several() ? chunk_bytes_of(bytes) : (setup_.checked ? kCheckedFrameBytes : kFrameBytesMax);
  request.parts =
      bytes == 0
          ? 1
          : static_cast<std::uint32_t>((bytes + request.part_bytes - 1) / request.part_bytes);
  request.next_part = 0;
  if (several()) {
    request.flow_of.assign(request.parts, kNobody);
  }
  ++posted_;
  ++open_;
  set_waiting(true);
  // Alone it goes at once. With others under way the caller will come and test them: then it goes,
  // with whatever else was posted meanwhile; see registry_idle() for a caller that does not come.
  if (outstanding_++ > 0 && bytes <= kWaitBytesMax) {
    set_unsent(true);
  } else {
    progress();
  }
  return &request;
}

void SendComm::progress() {
  if (several()) {
    const std::int64_t now_ns = monotonic_ns();
    for (unsigned i = 0; i < flows_.size() && open_ > 0; ++i) {
      read_acks(i);
    }
    maintain(now_ns);
    check_health(now_ns);
  } else if (++rounds_ % kClockEvery == 0) {
    check_health(monotonic_ns());
  }
  std::size_t budget = kRoundBytes;
  const unsigned count = static_cast<unsigned>(flows_.size());
  for (unsigned i = 0; i < count && failure() == nullptr; ++i) {
    pump((turn_ + i) % count, &budget);
  }
  turn_ = count > 1 ? (turn_ + 1) % count : 0;
  set_unsent(false);
  set_waiting(open_ > 0);
}

void SendComm::pump(unsigned number, std::size_t* budget) {
  Flow& flow = flows_[number];
  while (flow.fd.valid() && *budget > 0) {
    fill(number);
    if (flow.out.empty()) {
      return;
    }
    std::size_t wrote = 0;
    const Outbox::Outcome outcome = flow.out.write(
        flow.fd.get(), &wrote, [this](const Outbox::Entry& entry) { part_gone(entry.header); });
    bytes_ += wrote;
    *budget -= std::min(*budget, wrote);
    if (outcome == Outbox::Outcome::kLost) {
      lose(number, std::strerror(flow.out.error()));
    }
    if (outcome != Outbox::Outcome::kAll) {
      return;
    }
  }
}

void SendComm::fill(unsigned number) {
  Flow& flow = flows_[number];
  SendRequest* request = nullptr;
  std::uint32_t part = 0;
  while (flow.out.accepts() && next_part(number, &request, &part)) {
    FrameHeader header = header_of(*request, part);
    const std::byte* data = request->data + header.offset;
    if (setup_.checked) {
      header.flags = kFlagChecked;
      header.check = payload_check(data, header.payload_bytes);
    }
    flow.out.push(header, data);
    if (several() && flow.out.bytes() >= kChunkBytesMin) {
      return;  // so that the other flows find the next part
    }
  }
}

bool SendComm::next_part(unsigned number, SendRequest** request, std::uint32_t* part) {
  while (!resend_.empty()) {
    const auto [message, which] = resend_.front();
    resend_.pop_front();
    SendRequest& old = slot(message);
    if (old.used && !old.done && old.message == message) {
      *request = &old;
      *part = which;
      old.flow_of[which] = static_cast<std::uint8_t>(number);
      return true;
    }
  }
  if (taking_ == posted_) {
    return false;
  }
  SendRequest& next = slot(taking_);
  *request = &next;
  *part = next.next_part++;
  if (several()) {
    next.flow_of[*part] = static_cast<std::uint8_t>(number);
  }
  if (next.next_part == next.parts) {
    ++taking_;
  }
  return true;
}

FrameHeader SendComm::header_of(const SendRequest& request, std::uint32_t part) const {
  FrameHeader header;
  header.message = request.message;
  header.message_bytes = request.bytes;
  header.offset = part * request.part_bytes;
  header.payload_bytes =
      static_cast<std::uint32_t>(std::min(request.part_bytes, request.bytes - header.offset));
  return header;
}

void SendComm::part_gone(const FrameHeader& header) {
  if (!several() && header.offset + header.payload_bytes == header.message_bytes) {
    finish(&slot(header.message));
  }
}

void SendComm::finish(SendRequest* request) {
  request->done = true;
  --open_;
  while (oldest_ != posted_ && (slot(oldest_).done || slot(oldest_).message != oldest_)) {
    ++oldest_;
  }
}

void SendComm::read_acks(unsigned number) {
  Flow& flow = flows_[number];
  while (flow.fd.valid()) {
    const ssize_t got = ::recv(flow.fd.get(), flow.in.data() + flow.in_bytes,
                               flow.in.size() - flow.in_bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    }
    if (got <= 0) {
      lose(number, got == 0 ? "the peer has closed it" : std::strerror(errno));
      return;
    }
    flow.in_bytes += static_cast<std::size_t>(got);
    if (flow.in_bytes < flow.in.size()) {
      return;
    }
    flow.in_bytes = 0;
    FrameHeader header;
    std::memcpy(&header, flow.in.data(), sizeof(header));
    if (header.magic != kFrameMagic || header.type != FrameType::kAck) {
      lose(number, "the peer sent what is no ack");
      return;
    }
    acked_below(header.message);
  }
}

void SendComm::acked_below(std::uint32_t message) {
  while (before(oldest_, message) && oldest_ != posted_) {
    SendRequest& request = slot(oldest_);
    if (!request.done) {
      finish(&request);
    } else {
      ++oldest_;
    }
    moved_ns_ = checked_ns_;
  }
}

void SendComm::lose(unsigned number, const std::string& why) {
  Flow& flow = flows_[number];
  flow.fd.reset();
  flow.out.clear();
  flow.in_bytes = 0;
  if (live_flows() == 0) {
    fail({.code = Code::kPeerDead,
          .message = fmt::format("the connection to {} is lost while {} sends are under way: {}. "
                                 "Look at the log of that process first.",
                                 setup_.peer, open_, why)});
    return;
  }
  report(LogLevel::kWarn,
         fmt::format("flow {} to {} ({}) is lost: {}; its data goes over the {} that are left",
                     number, setup_.peer, to_string(setup_.flows[number]), why, live_flows()));
  flow.backoff_ns = kBackoffFirstNs;
  flow.dial_at_ns = monotonic_ns() + flow.backoff_ns;
  for (std::uint32_t message = oldest_; message != posted_; ++message) {
    SendRequest& request = slot(message);
    for (std::uint32_t part = 0; !request.done && part < request.next_part; ++part) {
      if (request.flow_of[part] == number) {
        request.flow_of[part] = kNobody;
        resend_.emplace_back(message, part);
      }
    }
  }
}

void SendComm::maintain(std::int64_t now_ns) {
  for (unsigned i = 0; i < flows_.size(); ++i) {
    Flow& flow = flows_[i];
    if (flow.fd.valid()) {
      continue;
    }
    switch (flow.dial.state()) {
      case Dial::State::kIdle:
        if (now_ns >= flow.dial_at_ns) {
          Hello hello = setup_.hello;
          hello.flow = static_cast<std::uint16_t>(i);
          flow.dial.start(setup_.flows[i], hello, now_ns);
        }
        break;
      case Dial::State::kFailed:
        flow.backoff_ns = std::clamp(2 * flow.backoff_ns, kBackoffFirstNs, kBackoffMaxNs);
        flow.dial_at_ns = now_ns + flow.backoff_ns;
        flow.dial.drop();
        break;
      default:
        if (flow.dial.poll(now_ns) == Dial::State::kReady) {
          join(i, now_ns);
        }
    }
  }
}

void SendComm::join(unsigned number, std::int64_t now_ns) {
  Flow& flow = flows_[number];
  flow.fd = flow.dial.take();
  mark(flow.fd);
  flow.out.clear();
  flow.in_bytes = 0;
  flow.backoff_ns = 0;
  moved_ns_ = now_ns;
  tcp::limit_unsent(flow.fd, tcp::kUnsentOfFlows);
  if (flow.had_one) {
    report(LogLevel::kInfo, fmt::format("flow {} to {} ({}) is back", number, setup_.peer,
                                        to_string(setup_.flows[number])));
  }
  flow.had_one = true;
}

void SendComm::check_health(std::int64_t now_ns) {
  if (now_ns - checked_ns_ < kHealthNs) {
    return;
  }
  checked_ns_ = now_ns;
  for (unsigned i = 0; i < flows_.size(); ++i) {
    if (!flows_[i].fd.valid()) {
      continue;
    }
    if (live_flows() > 1 && tcp::stalled(flows_[i].fd)) {
      lose(i, "its machine has not answered for 300 ms");
    } else if (const std::optional<std::string> why = tcp::silent_peer(flows_[i].fd)) {
      lose(i, *why);
    }
  }
}

std::string SendComm::describe(std::int64_t now_ns) const {
  if (failure() != nullptr) {
    return fmt::format("send to {}: failed: {}", setup_.peer, failure()->message);
  }
  std::string state = "idle";
  if (open_ > 0) {
    state = taking_ == posted_ && several()
                ? "waits for the receiver's acknowledgement"
                : "waits for room in the socket: the receiver, or the network, takes no more";
  }
  return fmt::format(
      "send to {}: {}; {} posted, oldest not done {}, {} under way, {} B written, {} of {} flows, "
      "last looked at {} ms ago",
      setup_.peer, state, posted_, oldest_, open_, bytes_, live_flows(), flows_.size(),
      (now_ns - std::max(checked_ns_, moved_ns_)) / 1'000'000);
}

}  // namespace isthmus::nccl
