#include "transport/shm/shm_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "transport/shm/shm_lane.h"

namespace isthmus {
namespace {

constexpr std::uint32_t kAddressMagic = 0x4d485349;

struct Address {
  std::uint32_t magic = kAddressMagic;
  std::int32_t rank = -1;
  std::uint64_t token = 0;  // of the rank's segment
};

// Idle polls between two looks at the clock. A power of two.
constexpr std::uint32_t kIdlePolls = 256;
constexpr std::int64_t kLookEveryNs = 1'000'000;

}  // namespace

ShmTransport::ShmTransport(ShmNode* node)
    : node_(node), shared_(std::make_unique<shm::LaneShared>()) {
  shared_->rank = node->self().rank;
}

ShmTransport::~ShmTransport() {
  disarm();
}

Result<std::unique_ptr<ShmTransport>> ShmTransport::create(ShmNode* node) {
  std::unique_ptr<ShmTransport> out(new ShmTransport(node));
  for (const int peer : node->peers()) {
    const auto index = static_cast<std::size_t>(peer);
    out->lanes_.resize(std::max(out->lanes_.size(), index + 1));
    out->lanes_[index] = std::make_unique<shm::ShmLane>(out->shared_.get(), peer, node->lane(peer));
    out->live_.push_back(out->lanes_[index].get());
  }
  return out;
}

bool ShmTransport::reaches(int peer) const {
  return peer >= 0 && static_cast<std::size_t>(peer) < lanes_.size() &&
         lanes_[static_cast<std::size_t>(peer)] != nullptr;
}

std::vector<std::byte> ShmTransport::address() const {
  const ShmNode::LocalPeer self = node_->self();
  const Address address{.rank = self.rank, .token = self.token};
  std::vector<std::byte> out(sizeof address);
  std::memcpy(out.data(), &address, sizeof address);
  return out;
}

Status ShmTransport::set_address(int peer, std::span<const std::byte> bytes) {
  Address address;
  const bool whole = bytes.size() == sizeof address;
  if (whole) {
    std::memcpy(&address, bytes.data(), sizeof address);
  }
  if (!reaches(peer) || !whole || address.magic != kAddressMagic || address.rank != peer ||
      address.token != node_->token_of(peer)) {
    return Error{.code = Code::kInvalidArgument,
                 .culprit = peer,
                 .message = fmt::format("The shared-memory address given for rank {} ({} bytes) is "
                                        "not that of the rank whose memory is mapped here.",
                                        peer, bytes.size())};
  }
  return {};
}

Endpoint& ShmTransport::endpoint(int peer) {
  ISTHMUS_CHECK(reaches(peer), "the rank is not on this node");
  return *lanes_[static_cast<std::size_t>(peer)];
}

void ShmTransport::notify(int peer, const Notice& notice) {
  if (reaches(peer)) {
    lanes_[static_cast<std::size_t>(peer)]->send_notice(notice);
  }
}

bool ShmTransport::poll(Events* events) {
  if (shut_down_) {
    return hand_over(events);
  }
  if (armed_) [[unlikely]] {
    disarm();
    node_->drain_bell();
    node_->look_for_dead();
  }
  bool moved = false;
  for (shm::ShmLane* lane : live_) {
    moved = lane->pump() || moved;
  }
  if (!moved) {
    look_around();
  }
  if (deaths_ != node_->deaths()) [[unlikely]] {
    moved = bury() || moved;
  }
  return hand_over(events) || moved;
}

// Deaths are looked for only while nothing comes.
void ShmTransport::look_around() {
  if ((++idle_polls_ & (kIdlePolls - 1)) != 0) {
    return;
  }
  const std::int64_t now = monotonic_ns();
  if (now - looked_ns_ >= kLookEveryNs) {
    looked_ns_ = now;
    node_->look_for_dead();
  }
}

bool ShmTransport::bury() {
  deaths_ = node_->deaths();
  bool moved = false;
  for (shm::ShmLane* lane : live_) {
    if (node_->is_dead(lane->peer()) && !lane->over()) {
      lane->on_peer_death();
      moved = true;
    }
  }
  return moved;
}

bool ShmTransport::hand_over(Events* events) {
  if (shared_->completions.empty() && shared_->notices.empty() && shared_->dead.empty()) {
    return false;
  }
  for (const shm::LaneShared::Pending& pending : shared_->completions) {
    events->completions.push_back(pending.completion);
  }
  for (Notice& notice : shared_->notices) {
    events->notices.push_back(std::move(notice));
  }
  events->dead.insert(events->dead.end(), shared_->dead.begin(), shared_->dead.end());
  shared_->completions.clear();
  shared_->notices.clear();
  shared_->dead.clear();
  std::erase_if(live_, [](const shm::ShmLane* lane) { return lane->over(); });
  return true;
}

void ShmTransport::wait_descriptors(std::vector<int>* fds) {
  fds->push_back(node_->bell_fd());
  node_->wait_descriptors(fds);
  if (!shut_down_) {
    arm();
  }
}

// Peers ring from here on until the next poll(). What they wrote before is looked for now.
void ShmTransport::arm() {
  if (!armed_) {
    armed_ = true;
    node_->own().header().bell.sleeping.fetch_add(1, std::memory_order_seq_cst);
  }
  bool ready = !shared_->completions.empty() || !shared_->notices.empty() || !shared_->dead.empty();
  for (shm::ShmLane* lane : live_) {
    ready = ready || lane->ready();
  }
  if (ready) {
    node_->ring_self();
  }
}

void ShmTransport::disarm() {
  if (armed_) {
    armed_ = false;
    node_->own().header().bell.sleeping.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void ShmTransport::shutdown() {
  if (shut_down_) {
    return;
  }
  shut_down_ = true;
  disarm();
  for (const std::unique_ptr<shm::ShmLane>& lane : lanes_) {
    if (lane != nullptr) {
      lane->leave();
    }
  }
  live_.clear();
  shared_->completions.clear();
  shared_->notices.clear();
  shared_->dead.clear();
}

}  // namespace isthmus
