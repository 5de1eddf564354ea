#include "plugins/nccl/recv_comm.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "plugins/nccl/checksum.h"
#include "plugins/nccl/registry.h"
#include "plugins/nccl/report.h"
#include "transport/tcp/sockets.h"

namespace isthmus::nccl {
namespace {

// After a message of at most this many bytes as much as the inbox holds is read ahead; after a
// longer one just the next header, for what goes through the inbox is copied once more.
constexpr std::uint64_t kSmallBytes = 4 << 10;
constexpr std::size_t kStashMax = 256;  // frames, each at most kChunkBytesMax
constexpr std::int64_t kStashAfterNs = 20'000'000;
constexpr std::size_t kFlowsMax = 16;

// Bytes that nobody wants are read to here; never read, so all comms share it.
std::byte* waste(std::size_t* bytes) {
  static thread_local std::array<std::byte, 64 << 10> place;
  *bytes = std::min(*bytes, place.size());
  return place.data();
}

}  // namespace

RecvComm::RecvComm(Arrival first, std::shared_ptr<Mailbox> mailbox)
    : mailbox_(std::move(mailbox)),
      hello_(first.hello),
      peer_(fmt::format("{} (pid {})", tcp::peer_name(first.fd), first.hello.pid)),
      several_((first.hello.flags & kHelloSeveral) != 0) {
  flows_.resize(several_ ? kFlowsMax : 1);
  flows_[0] = std::make_unique<Flow>();
  flows_[0]->fd = std::move(first.fd);
  for (RecvRequest& request : requests_) {
    request.comm = this;
  }
  moved_ns_ = monotonic_ns();
  registry_add(this);
}

RecvComm::~RecvComm() {
  registry_remove(this);
}

Result<Request*> RecvComm::post(void* data, std::uint64_t capacity) {
  RecvRequest& request = slot(posted_);
  if (request.used) {
    return nullptr;
  }
  if (failure() != nullptr) {
    return *failure();
  }
  request.used = true;
  request.done = false;
  request.message = posted_;
  request.bytes = 0;
  request.data = static_cast<std::byte*>(data);
  request.capacity = capacity;
  request.moved = 0;
  request.chunks = {};
  ++posted_;
  ++open_;
  ++outstanding_;
  set_waiting(true);
  if (!stash_.empty()) {
    apply_stash(request.message);
  }
  for (std::unique_ptr<Flow>& flow : flows_) {
    if (flow != nullptr && flow->blocked && failure() == nullptr) {
      drain(flow.get());  // what came before its buffer
    }
  }
  return &request;
}

void RecvComm::progress() {
  if (several_ && mailbox_->any()) {
    take_flows();
  }
  std::size_t budget = kRoundBytes;
  bool alive = false;
  for (std::unique_ptr<Flow>& flow : flows_) {
    if (flow != nullptr && failure() == nullptr) {
      pump(flow.get(), &budget);
      if (flow->ended && several_) {
        flow.reset();  // its unfinished chunks come again over another
      } else {
        alive |= !flow->ended;
      }
    }
  }
  if (ack_due_ && failure() == nullptr) {
    send_acks();
  }
  const bool lost = !alive && (several_ || !flows_[0]->blocked);
  if (lost && open_ > 0 && failure() == nullptr) {
    const int error = several_ || flows_[0] == nullptr ? 0 : flows_[0]->error;
    fail({.code = Code::kPeerDead,
          .message = fmt::format(
              "the connection from {} is lost while {} receives wait (the oldest is message {}, {} "
              "of its bytes are here): {}. Look at the log of that process first.",
              peer_, open_, oldest_, slot(oldest_).moved,
              error == 0 ? "the peer has closed it or is dead" : std::strerror(error))});
  }
  set_waiting(open_ > 0);
}

void RecvComm::pump(Flow* flow, std::size_t* budget) {
  while (*budget > 0 && open_ > 0) {
    if (!drain(flow) || flow->ended || open_ == 0) {
      return;
    }
    std::size_t asked = 0;
    const std::ptrdiff_t got = read(flow, &asked);
    if (got <= 0) {
      return;
    }
    const auto bytes = static_cast<std::size_t>(got);
    bytes_ += bytes;
    *budget -= std::min(*budget, bytes);
    if (bytes < asked) {
      drain(flow);
      return;  // the socket is dry
    }
  }
}

std::ptrdiff_t RecvComm::read(Flow* flow, std::size_t* asked) {
  std::array<iovec, 2> parts;
  int count = 0;
  if (flow->in_frame) {
    std::size_t left = flow->header.payload_bytes - flow->got;
    std::byte* to = flow->start == nullptr ? waste(&left) : flow->start + flow->got;
    parts[0] = {to, left};
    *asked = left;
    count = 1;
  }
  const bool whole = count == 0 || *asked == flow->header.payload_bytes - flow->got;
  const std::uint64_t like = flow->in_frame ? flow->header.message_bytes : last_bytes_;
  std::byte* const tail = flow->in.tail();
  std::size_t ahead = 0;
  if (whole) {
    ahead = like <= kSmallBytes ? flow->in.room() : sizeof(FrameHeader) - flow->in.size();
  }
  if (ahead > 0) {
    parts[static_cast<std::size_t>(count++)] = {tail, ahead};
    *asked += ahead;
  }
  const ssize_t got =
      count == 1 ? ::recv(flow->fd.get(), parts[0].iov_base, parts[0].iov_len, MSG_DONTWAIT)
                 : ::readv(flow->fd.get(), parts.data(), count);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return 0;
  }
  if (got <= 0) {
    flow->error = got == 0 ? 0 : errno;
    lose(flow);
    return -1;
  }
  std::size_t rest = static_cast<std::size_t>(got);
  if (flow->in_frame) {
    const std::size_t mine = std::min<std::size_t>(rest, flow->header.payload_bytes - flow->got);
    flow->got += mine;
    rest -= mine;
  }
  flow->in.grown(rest);
  return got;
}

bool RecvComm::drain(Flow* flow) {
  for (;;) {
    if (flow->blocked && !bind(flow)) {
      return false;
    }
    if (!flow->in_frame) {
      if (flow->in.size() < sizeof(FrameHeader)) {
        return true;
      }
      if (!begin_frame(flow)) {
        return false;
      }
    }
    const std::size_t some =
        std::min<std::size_t>(flow->header.payload_bytes - flow->got, flow->in.size());
    if (some > 0) {
      if (flow->start != nullptr) {
        std::memcpy(flow->start + flow->got, flow->in.data(), some);
      }
      flow->in.drop(some);
      flow->got += some;
    }
    if (flow->got < flow->header.payload_bytes) {
      return true;
    }
    if (!finish_frame(flow)) {
      return false;
    }
  }
}

bool RecvComm::lawful(const FrameHeader& header) const {
  const bool plain =
      header.magic == kFrameMagic && header.type == FrameType::kData &&
      (header.flags & ~kFlagChecked) == 0 && header.payload_bytes <= kFrameBytesMax &&
      header.message_bytes <= kMessageBytesMax && header.offset <= header.message_bytes &&
      header.payload_bytes <= header.message_bytes - header.offset &&
      (header.payload_bytes > 0 || header.message_bytes == 0);
  if (!plain || !several_) {
    return plain;
  }
  const std::uint64_t chunk = chunk_bytes_of(header.message_bytes);
  return header.offset % chunk == 0 &&
         header.payload_bytes == std::min(chunk, header.message_bytes - header.offset);
}

// False when the frame has to wait for its buffer, or the comm has failed.
bool RecvComm::begin_frame(Flow* flow) {
  std::memcpy(&flow->header, flow->in.data(), sizeof(FrameHeader));
  flow->in.drop(sizeof(FrameHeader));
  if (!lawful(flow->header)) {
    fail({.code = Code::kProtocol,
          .message = fmt::format(
              "{} sent a frame that breaks the protocol: magic {:#06x}, type {}, message {}, {} B "
              "at {} of {} B. Both must run one version of isthmus.",
              peer_, flow->header.magic, static_cast<int>(flow->header.type), flow->header.message,
              flow->header.payload_bytes, flow->header.offset, flow->header.message_bytes)});
    return false;
  }
  return bind(flow);
}

// Finds where the payload of the flow's header belongs.
bool RecvComm::bind(Flow* flow) {
  const FrameHeader& header = flow->header;
  flow->got = 0;
  flow->start = nullptr;
  flow->request = nullptr;
  flow->stash.reset();
  if (!before(header.message, posted_)) {
    if (!flow->blocked) {
      flow->blocked = true;
      flow->blocked_ns = several_ ? monotonic_ns() : 0;
    }
    if (!may_stash(*flow)) {
      return false;
    }
    flow->stash = std::make_unique<Stashed>();
    flow->stash->header = header;
    flow->stash->payload.resize(header.payload_bytes);
    flow->start = flow->stash->payload.data();
  } else {
    RecvRequest& request = slot(header.message);
    if (request.used && !request.done && request.message == header.message &&
        !place(flow, &request)) {
      return false;
    }
  }
  flow->blocked = false;
  flow->in_frame = true;
  return true;
}

bool RecvComm::place(Flow* flow, RecvRequest* request) {
  const FrameHeader& header = flow->header;
  if (header.message_bytes > request->capacity) {
    fail({.code = Code::kMismatch,
          .message = fmt::format(
              "message {} from {} has {} B, the posted buffer {} B. Ranks that run different NCCL "
              "settings do this: NCCL_PROTO, NCCL_ALGO, NCCL_BUFFSIZE and the NCCL version must be "
              "the same everywhere.",
              header.message, peer_, header.message_bytes, request->capacity)});
    return false;
  }
  if (!several_ && header.offset != request->moved) {
    fail({.code = Code::kProtocol,
          .message = fmt::format("{} sent byte {} of message {}, expected byte {}.", peer_,
                                 header.offset, header.message, request->moved)});
    return false;
  }
  const auto chunk =
      static_cast<std::uint32_t>(header.offset / chunk_bytes_of(header.message_bytes));
  if (!several_ || !request->chunks.contains(chunk)) {
    flow->start = request->data + header.offset;
    flow->request = request;
  }
  return true;
}

// A chunk that was sent again may lie behind one of a later message, whose buffer comes only after
// the earlier message is whole. So what waits for its buffer for long, while another message waits
// for data, is put aside.
bool RecvComm::may_stash(const Flow& flow) const {
  return several_ && open_ > 0 && stash_.size() < kStashMax &&
         monotonic_ns() - flow.blocked_ns > kStashAfterNs;
}

bool RecvComm::finish_frame(Flow* flow) {
  const FrameHeader& header = flow->header;
  flow->in_frame = false;
  if (flow->start != nullptr && (header.flags & kFlagChecked) != 0 &&
      payload_check(flow->start, header.payload_bytes) != header.check) {
    Error error{.code = Code::kProtocol,
                .message = fmt::format(
                    "{} B at {} of message {} from {} have changed on their way: "
                    "their checksum is not {:#010x}. Memory or a network card of "
                    "one of both hosts is faulty.",
                    header.payload_bytes, header.offset, header.message, peer_, header.check)};
    fail(std::move(error));
    return false;
  }
  if (flow->stash != nullptr) {
    stash_.push_back(std::move(flow->stash));
    return true;
  }
  last_bytes_ = header.message_bytes;
  RecvRequest* const request = flow->request;
  if (request == nullptr) {
    return true;
  }
  flow->request = nullptr;
  if (several_) {
    const auto chunk =
        static_cast<std::uint32_t>(header.offset / chunk_bytes_of(header.message_bytes));
    if (request->chunks.contains(chunk)) {
      return true;
    }
    request->chunks.add(chunk);
  }
  request->moved += header.payload_bytes;
  if (request->moved == header.message_bytes) {
    request->bytes = header.message_bytes;
    complete(request);
  }
  return true;
}

void RecvComm::complete(RecvRequest* request) {
  request->done = true;
  --open_;
  ack_due_ |= several_;
  ack_fresh_ |= several_;
  while (oldest_ != posted_ && (slot(oldest_).message != oldest_ || slot(oldest_).done)) {
    ++oldest_;
  }
  if (!several_) {
    return;
  }
  // A copy that still comes over another flow must not touch a buffer that is the caller's again.
  for (std::unique_ptr<Flow>& flow : flows_) {
    if (flow != nullptr && flow->request == request) {
      flow->request = nullptr;
      flow->start = nullptr;
    }
  }
}

void RecvComm::apply_stash(std::uint32_t message) {
  for (std::size_t i = 0; i < stash_.size() && failure() == nullptr;) {
    if (stash_[i]->header.message != message) {
      ++i;
      continue;
    }
    const std::unique_ptr<Stashed> found = std::move(stash_[i]);
    stash_.erase(stash_.begin() + static_cast<std::ptrdiff_t>(i));
    Flow as_if;
    as_if.header = found->header;
    if (place(&as_if, &slot(message)) && as_if.start != nullptr) {
      std::copy(found->payload.begin(), found->payload.end(), as_if.start);
      as_if.header.flags = 0;  // it was checked when it came
      finish_frame(&as_if);
    }
  }
}

void RecvComm::lose(Flow* flow) {
  flow->ended = true;
  flow->fd.reset();
}

void RecvComm::take_flows() {
  for (Arrival& arrival : mailbox_->take()) {
    if (arrival.hello.flow >= flows_.size()) {
      continue;
    }
    auto flow = std::make_unique<Flow>();
    flow->fd = std::move(arrival.fd);
    flows_[arrival.hello.flow] = std::move(flow);
    ack_due_ = true;
    ack_fresh_ = true;
  }
}

// On every flow: one that is cut takes acks along, too. A flow that is full, as one that is cut
// soon is, gets its ack later, without one more for the others.
void RecvComm::send_acks() {
  FrameHeader ack;
  ack.type = FrameType::kAck;
  ack.message = oldest_;
  bool left = false;
  for (std::unique_ptr<Flow>& flow : flows_) {
    if (flow == nullptr || !flow->fd.valid() || !(ack_fresh_ || flow->ack_due)) {
      continue;
    }
    // 32 bytes into a direction that carries nothing else: all of them or none.
    const ssize_t sent = ::send(flow->fd.get(), &ack, sizeof(ack), MSG_NOSIGNAL | MSG_DONTWAIT);
    flow->ack_due = sent < 0 && errno == EAGAIN;
    left |= flow->ack_due;
  }
  ack_fresh_ = false;
  ack_due_ = left;
}

std::string RecvComm::describe(std::int64_t /*now_ns*/) const {
  if (failure() != nullptr) {
    return fmt::format("recv from {}: failed: {}", peer_, failure()->message);
  }
  const RecvRequest& oldest = requests_[oldest_ % kRequestsMax];
  const bool unposted = flows_[0] != nullptr && flows_[0]->blocked;
  std::string state = "idle";
  if (open_ > 0) {
    state = fmt::format("waits for the peer to send message {}, {} of its bytes are here", oldest_,
                        oldest.moved);
  } else if (unposted) {
    state = fmt::format("the peer has sent message {}, this process has posted no buffer", posted_);
  }
  const auto flows =
      std::count_if(flows_.begin(), flows_.end(), [](const auto& each) { return each != nullptr; });
  return fmt::format("recv from {}: {}; {} posted, {} under way, {} B read, {} flows", peer_, state,
                     posted_, open_, bytes_, flows);
}

}  // namespace isthmus::nccl
