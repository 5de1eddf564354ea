#include "transport/tcp/tcp_transport.h"

#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/fork.h"
#include "transport/tcp/connector.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/sockets.h"

namespace isthmus {
namespace {

constexpr int kEventsMax = 64;
// While one lane alone waits, its socket is read without asking epoll, and while none does, nothing
// is read: other transports may be what the caller polls for. Every so many polls epoll is asked
// all the same, for connections, notices, deaths and timers. A power of two.
constexpr std::uint32_t kDirectPolls = 16;
// Descriptors for all but connections: files of the program, shared memory, bells.
constexpr std::size_t kDescriptorsSpared = 512;
constexpr std::int64_t kSilenceCheckNs = 5'000'000'000;

}  // namespace

TcpTransport::TcpTransport(const TcpOptions& options)
    : shared_(std::make_unique<tcp::LaneShared>()), lanes_(static_cast<std::size_t>(options.size)) {
  shared_->options = options;
}

TcpTransport::~TcpTransport() = default;

Result<std::unique_ptr<TcpTransport>> TcpTransport::create(const TcpOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("Rank {} of {} cannot have a TCP transport.", options.rank,
                                        options.size)};
  }
  install_fork_handlers();
  tcp::raise_descriptor_limit(kDescriptorsSpared + static_cast<std::size_t>(options.size) *
                                                       static_cast<std::size_t>(options.flows));
  std::unique_ptr<TcpTransport> out(new TcpTransport(options));
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) {
    return system_error(Code::kResource, errno, "Cannot create an epoll for TCP");
  }
  out->epoll_ = Fd(epoll);
  TcpTransport* self = out.get();
  ISTHMUS_ASSIGN(out->connector_, tcp::Connector::create(
                                      self->shared_.get(), &self->epoll_,
                                      [self](int peer) -> tcp::Lane& { return self->lane(peer); }));
  self->shared_->connect = [self](int peer, bool urgent) {
    if (!self->shut_down_) {
      self->connector_->want(peer, urgent);
    }
  };
  self->shared_->widen = [self](int peer) {
    if (!self->shut_down_) {
      self->connector_->widen(peer);
    }
  };
  self->shared_->flow_lost = [self](int peer, std::uint8_t flow) {
    if (!self->shut_down_) {
      self->connector_->flow_lost(peer, flow);
    }
  };
  return out;
}

std::vector<std::byte> TcpTransport::address() const {
  return tcp::encode_address(connector_->address());
}

Status TcpTransport::set_address(int peer, std::span<const std::byte> address) {
  if (peer < 0 || peer >= shared_->options.size) {
    return Error{
        .code = Code::kInvalidArgument,
        .message = fmt::format("There is no rank {} among {}.", peer, shared_->options.size)};
  }
  return connector_->set_address(peer, address);
}

tcp::Lane& TcpTransport::lane(int peer) {
  ISTHMUS_CHECK(peer >= 0 && peer < shared_->options.size, "no such rank");
  std::unique_ptr<tcp::Lane>& slot = lanes_[static_cast<std::size_t>(peer)];
  if (slot == nullptr) {
    slot = std::make_unique<tcp::Lane>(shared_.get(), peer);
    if (shut_down_) {
      slot->end({.code = Code::kAborted, .message = "This rank has shut its TCP transport down."},
                false);
    }
  }
  return *slot;
}

Endpoint& TcpTransport::endpoint(int peer) {
  return lane(peer);
}

void TcpTransport::notify(int peer, const Notice& notice) {
  if (peer >= 0 && peer < shared_->options.size && peer != shared_->options.rank) {
    lane(peer).send_notice(notice);
  }
}

void TcpTransport::wait_descriptors(std::vector<int>* fds) {
  fds->push_back(epoll_.get());
}

// The lane to read without epoll: the only one that waits for input, while nobody connects and no
// socket is full.
tcp::Lane* TcpTransport::only_waiting_lane() {
  if (shared_->waiting != 1 || shared_->blocked != 0 || !connector_->idle()) {
    return nullptr;
  }
  tcp::Lane* only = lanes_[static_cast<std::size_t>(shared_->waiting_xor)].get();
  return only->connected() ? only : nullptr;
}

bool TcpTransport::poll(Events* events) {
  bool moved = hand_over(events);
  if (shut_down_) {
    return moved;
  }
  tcp::Lane* only = only_waiting_lane();
  const bool quiet = shared_->waiting == 0 && shared_->blocked == 0 && connector_->idle();
  if ((only == nullptr && !quiet) || (++direct_polls_ & (kDirectPolls - 1)) == 0) {
    moved |= poll_epoll();
  } else if (only != nullptr) {
    moved |= only->pump_unasked();
  }
  if (!shared_->held.empty()) {
    let_go_held();
  }
  moved |= pump_active();
  return hand_over(events) || moved;
}

bool TcpTransport::poll_epoll() {
  std::array<epoll_event, kEventsMax> ready;  // filled by epoll_wait() as far as it says
  const int count = ::epoll_wait(epoll_.get(), ready.data(), kEventsMax, 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = ready[static_cast<std::size_t>(i)];
    switch (static_cast<tcp::Watched>(event.data.u64 >> 56)) {
      case tcp::Watched::kListener:
        connector_->on_listener();
        break;
      case tcp::Watched::kTimer:
        connector_->on_timer();
        check_rails();
        check_silence();
        break;
      case tcp::Watched::kHandshake:
        connector_->on_handshake(event.data.u64);
        break;
      case tcp::Watched::kLane: {
        tcp::Lane& lane = *lanes_[event.data.u64 & 0xffffffff];
        lane.on_events(static_cast<std::uint32_t>(event.data.u64 >> 32) & 0xffffff, event.events);
        lane.mark_active();
        break;
      }
    }
  }
  return count > 0;
}

void TcpTransport::check_rails() {
  for (std::size_t i = 0; i < lanes_.size() && shared_->wide > 0; ++i) {
    if (lanes_[i] != nullptr) {
      lanes_[i]->check_rails();
    }
  }
}

void TcpTransport::check_silence() {
  const std::int64_t now = monotonic_ns();
  if (now - silence_checked_ns_ < kSilenceCheckNs) {
    return;
  }
  silence_checked_ns_ = now;
  for (const std::unique_ptr<tcp::Lane>& lane : lanes_) {
    if (lane != nullptr) {
      lane->check_silence();
    }
  }
}

// Whoever sleeps is not woken when a lane has waited long enough: the engine looks every few
// milliseconds.
void TcpTransport::let_go_held() {
  const std::int64_t now = monotonic_ns();
  std::erase_if(shared_->held, [&](tcp::Lane* lane) { return lane->let_go(now); });
}

// Each active lane once; those that have more to do are active again afterwards.
bool TcpTransport::pump_active() {
  if (shared_->active.empty()) {
    return false;
  }
  pumping_.swap(shared_->active);
  bool moved = false;
  for (tcp::Lane* lane : pumping_) {
    moved |= lane->pump();
  }
  pumping_.clear();
  return moved;
}

bool TcpTransport::hand_over(Events* events) {
  if (shared_->completions.empty() && shared_->notices.empty() && shared_->dead.empty()) {
    return false;
  }
  for (const tcp::LaneShared::Pending& pending : shared_->completions) {
    events->completions.push_back(pending.completion);
  }
  for (Notice& notice : shared_->notices) {
    events->notices.push_back(std::move(notice));
  }
  events->dead.insert(events->dead.end(), shared_->dead.begin(), shared_->dead.end());
  shared_->completions.clear();
  shared_->notices.clear();
  shared_->dead.clear();
  return true;
}

void TcpTransport::shutdown() {
  if (shut_down_) {
    return;
  }
  shut_down_ = true;
  connector_->close();
  for (const std::unique_ptr<tcp::Lane>& lane : lanes_) {
    if (lane != nullptr) {
      lane->leave();
    }
  }
  shared_->active.clear();
  shared_->held.clear();
  shared_->completions.clear();
  shared_->notices.clear();
  shared_->dead.clear();
}

}  // namespace isthmus
