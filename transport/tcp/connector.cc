#include "transport/tcp/connector.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"

namespace isthmus::tcp {
namespace {

constexpr std::int64_t kNsPerMs = 1'000'000;
constexpr std::int64_t kFastTickNs = 10 * kNsPerMs;  // while somebody is connecting
// While a flow is to be called again, or one could be lost and others carry on.
constexpr std::int64_t kLivelyTickNs = 100 * kNsPerMs;
constexpr std::int64_t kSlowTickNs = 5000 * kNsPerMs;  // to look for silent machines
// How long a lane that only receives waits for the sender's call.
constexpr std::int64_t kPatienceNs = 20 * kNsPerMs;
// Connections accepted per event: others get their turn.
constexpr int kAcceptsMax = 64;

}  // namespace

Connector::Connector(LaneShared* shared, const Fd* epoll, std::function<Lane&(int)> lane_of)
    : shared_(shared), epoll_(epoll), lane_of_(std::move(lane_of)) {}

Result<std::unique_ptr<Connector>> Connector::create(LaneShared* shared, const Fd* epoll,
                                                     std::function<Lane&(int)> lane_of) {
  std::unique_ptr<Connector> out(new Connector(shared, epoll, std::move(lane_of)));
  const TcpOptions& options = shared->options;
  ISTHMUS_ASSIGN(const PortRange ports, PortRange::parse(options.ports));
  ISTHMUS_ASSIGN(out->listener_, open_listener(ports, static_cast<unsigned>(options.rank)));
  ISTHMUS_ASSIGN(out->address_,
                 local_address(InterfaceFilter::parse(options.interfaces), options.route_target,
                               out->listener_.port, out->listener_.ipv6));
  const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (timer < 0) {
    return system_error(Code::kResource, errno, "Cannot create a timer for TCP connections");
  }
  out->timer_ = Fd(timer);
  ISTHMUS_TRY(out->watch(out->listener_.fd, EPOLLIN, watch_key(Watched::kListener, 0, 0)));
  ISTHMUS_TRY(out->watch(out->timer_, EPOLLIN, watch_key(Watched::kTimer, 0, 0)));
  out->arm_timer();
  return out;
}

Status Connector::watch(const Fd& fd, std::uint32_t events, std::uint64_t key) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  if (::epoll_ctl(epoll_->get(), EPOLL_CTL_ADD, fd.get(), &event) == 0) {
    return {};
  }
  if (errno == EEXIST && ::epoll_ctl(epoll_->get(), EPOLL_CTL_MOD, fd.get(), &event) == 0) {
    return {};
  }
  return system_error(Code::kResource, errno, "Cannot watch a TCP socket with epoll");
}

void Connector::arm_timer() {
  const bool fast = !idle() || listener_paused_;
  const bool lively = shared_->wide > 0 || flows_missing();
  const std::int64_t tick = fast ? kFastTickNs : lively ? kLivelyTickNs : kSlowTickNs;
  if (tick == tick_ns_) {
    return;
  }
  tick_ns_ = tick;
  itimerspec spec{};
  spec.it_interval.tv_sec = tick / 1'000'000'000;
  spec.it_interval.tv_nsec = tick % 1'000'000'000;
  spec.it_value = spec.it_interval;
  ISTHMUS_CHECK(::timerfd_settime(timer_.get(), 0, &spec, nullptr) == 0,
                "a timer of ours cannot be set");
}

Status Connector::set_address(int peer, std::span<const std::byte> bytes) {
  ISTHMUS_ASSIGN(Address address, decode_address(bytes));
  addresses_[peer] = std::move(address);
  return {};
}

// The peer is on another host and none of its addresses leads out of that.
Error Connector::unreachable(int peer, const Address& theirs) const {
  std::vector<std::string> found;
  found.reserve(theirs.candidates.size());
  for (const Candidate& candidate : theirs.candidates) {
    found.push_back(to_string(candidate));
  }
  return {.code = Code::kTimeout,
          .culprit = peer,
          .message = fmt::format(
              "World rank {} is on another machine or in another network namespace and cannot be "
              "reached from rank {}: only loopback was found there ({}). Bring an interface up, or "
              "name one with ISTHMUS_IFACE that is left out by default (a bridge of containers, a "
              "port without a link).",
              peer, shared_->options.rank, fmt::join(found, ", "))};
}

void Connector::want(int peer, bool urgent) {
  const auto found = meetings_.find(peer);
  Meeting* meeting = found == meetings_.end() ? &meetings_[peer] : &found->second;
  if (!meeting->wanted) {
    const auto known = addresses_.find(peer);
    if (known == addresses_.end() || peer == shared_->options.rank) {
      give_up(peer, {.code = Code::kInvalidArgument,
                     .message = fmt::format("Rank {} has no address of rank {}.",
                                            shared_->options.rank, peer)});
      return;
    }
    const std::int64_t now = monotonic_ns();
    meeting->wanted = true;
    meeting->deadline_ns =
        Deadline::after_ns(now, shared_->options.connect_timeout_ms * kNsPerMs).at_ns();
    meeting->retry_ns = now + kPatienceNs;
    meeting->order = connect_order(address_, known->second);
    if (meeting->order.empty() && meeting->accepted < 0) {
      give_up(peer, unreachable(peer, known->second));
      return;
    }
    arm_timer();
  }
  const bool untried = meeting->next == 0 && meeting->backoff_ns == 0;
  if (urgent && untried && meeting->dialled < 0 && meeting->accepted < 0) {
    dial(peer, meeting);
  }
}

int Connector::new_slot(Fd fd, Phase phase, std::uint32_t events) {
  int slot = static_cast<int>(slots_.size());
  if (free_slots_.empty()) {
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  auto handshake = std::make_unique<Handshake>();
  handshake->phase = phase;
  handshake->generation = ++generation_ & 0xffffff;
  handshake->fd = std::move(fd);
  const std::uint64_t key =
      watch_key(Watched::kHandshake, handshake->generation, static_cast<std::uint32_t>(slot));
  const Status watched = watch(handshake->fd, events, key);
  if (!watched.ok()) {
    log(LogLevel::kWarn, "tcp", "{}", watched.error().message);
    free_slots_.push_back(slot);
    return -1;
  }
  slots_[static_cast<std::size_t>(slot)] = std::move(handshake);
  if (phase == Phase::kStranger) {
    ++strangers_;
  }
  return slot;
}

void Connector::drop_slot(int slot) {
  if (slot < 0) {
    return;
  }
  std::unique_ptr<Handshake>& handshake = slots_[static_cast<std::size_t>(slot)];
  if (handshake->phase == Phase::kStranger) {
    --strangers_;
  }
  flow_slots_ -= handshake->flow > 0 ? 1U : 0U;
  handshake.reset();
  free_slots_.push_back(slot);
}

void Connector::drop_oldest_stranger() {
  int oldest = -1;
  std::int64_t deadline = Deadline::kNever;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] != nullptr && slots_[i]->phase == Phase::kStranger &&
        slots_[i]->deadline_ns < deadline) {
      deadline = slots_[i]->deadline_ns;
      oldest = static_cast<int>(i);
    }
  }
  drop_slot(oldest);
}

void Connector::on_listener() {
  for (int i = 0; i < kAcceptsMax; ++i) {
    Result<Fd> fd = accept_one(listener_.fd);
    if (!fd.ok()) {
      log(LogLevel::kWarn, "tcp", "{}", fd.error().message);
      const Status paused =
          watch(listener_.fd, 0, watch_key(Watched::kListener, 0, 0));  // until the next tick
      listener_paused_ = paused.ok();
      arm_timer();
      return;
    }
    if (!fd->valid()) {
      return;
    }
    if (strangers_ >= kStrangersMax) {
      drop_oldest_stranger();
    }
    const int slot = new_slot(std::move(*fd), Phase::kStranger, EPOLLIN | EPOLLRDHUP);
    if (slot >= 0) {
      slots_[static_cast<std::size_t>(slot)]->deadline_ns = monotonic_ns() + kHelloNs;
      arm_timer();
      on_bytes(slot);  // the hello is mostly here already
    }
  }
}

void Connector::on_handshake(std::uint64_t key) {
  const auto slot = static_cast<std::size_t>(key & 0xffffffff);
  const auto generation = static_cast<std::uint32_t>((key >> 32) & 0xffffff);
  if (slot >= slots_.size() || slots_[slot] == nullptr || slots_[slot]->generation != generation) {
    return;  // of a connection that was dropped by an earlier event of the same batch
  }
  if (slots_[slot]->phase == Phase::kConnecting) {
    on_connected(static_cast<int>(slot));
  } else {
    on_bytes(static_cast<int>(slot));
  }
}

void Connector::on_timer() {
  std::uint64_t ticks = 0;
  if (::read(timer_.get(), &ticks, sizeof(ticks)) < 0 && errno != EAGAIN) {
    log(LogLevel::kWarn, "tcp", "cannot read the timer: errno {}", errno);
  }
  const std::int64_t now = monotonic_ns();
  if (listener_paused_) {
    listener_paused_ = !watch(listener_.fd, EPOLLIN, watch_key(Watched::kListener, 0, 0)).ok();
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Handshake* handshake = slots_[i].get();
    if (handshake == nullptr || now < handshake->deadline_ns) {
      continue;
    }
    if (handshake->phase == Phase::kConnecting) {
      dial_failed(static_cast<int>(i), ETIMEDOUT, "no answer");
    } else {
      on_broken(static_cast<int>(i), "it did not say who it is in time");
    }
  }
  std::vector<int> peers;
  for (const auto& [peer, meeting] : meetings_) {
    if (meeting.wanted && meeting.dialled < 0 && meeting.accepted < 0) {
      peers.push_back(peer);
    }
  }
  for (const int peer : peers) {
    dial_due(peer, &meetings_[peer], now);
  }
  call_due_flows(now);
  arm_timer();
}

// Our own call came to nothing: takes the peer's, if it waits.
void Connector::welcome_next(int peer) {
  const auto found = meetings_.find(peer);
  if (found == meetings_.end()) {
    return;
  }
  const int slot = found->second.accepted;
  if (slot >= 0 && slots_[static_cast<std::size_t>(slot)]->phase == Phase::kParked) {
    welcome(slot);
  }
}

void Connector::finish_meeting(int peer, Fd fd) {
  const auto found = meetings_.find(peer);
  if (found != meetings_.end()) {
    drop_slot(found->second.dialled);
    drop_slot(found->second.accepted);
    meetings_.erase(found);
  }
  Lane& lane = lane_of_(peer);
  if (lane.over() || lane.connected()) {
    return;
  }
  const Status watched = watch(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                               watch_key(Watched::kLane, 0, static_cast<std::uint32_t>(peer)));
  if (!watched.ok()) {
    lane.end(watched.error(), true);
    return;
  }
  lane.attach(std::move(fd));
  arm_timer();
}

void Connector::give_up(int peer, Error why) {
  const auto found = meetings_.find(peer);
  if (found != meetings_.end()) {
    drop_slot(found->second.dialled);
    drop_slot(found->second.accepted);
    meetings_.erase(found);
  }
  const bool dead = why.code != Code::kInvalidArgument;
  lane_of_(peer).end(std::move(why), dead);
}

void Connector::close() {
  meetings_.clear();
  calls_.clear();
  flow_slots_ = 0;
  slots_.clear();
  free_slots_.clear();
  strangers_ = 0;
  listener_.fd.reset();
  timer_.reset();
}

}  // namespace isthmus::tcp
