#include "transport/sim/sim_transport.h"

#include <array>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

namespace isthmus {
namespace {

constexpr std::string_view kMagic = "isthsim1";

}  // namespace

SimEndpoint::SimEndpoint(SimNetwork* network, int rank, int peer)
    : network_(network), rank_(rank), peer_(peer) {
  network_->lane(rank_, peer_).used = true;
}

Result<Endpoint::Post> SimEndpoint::post_send(const Tag& tag, const OperationInfo& info,
                                              std::span<const std::byte> data, Token token) {
  return network_->post_send(rank_, peer_, tag, info, data, token);
}

Result<Endpoint::Post> SimEndpoint::post_recv(const Tag& tag, const OperationInfo& info,
                                              std::span<std::byte> data, Token token) {
  return network_->post_recv(rank_, peer_, tag, info, data, token);
}

bool SimEndpoint::offers(const Tag& tag) const {
  return network_->offers(rank_, peer_, tag);
}

void SimEndpoint::cancel(std::uint64_t operation) {
  network_->cancel(rank_, peer_, operation);
}

SimTransport::SimTransport(SimNetwork* network, int rank) : network_(network), rank_(rank) {}

SimTransport::~SimTransport() {
  if (!network_->rank_state(rank_).left) {
    network_->kill(rank_);
  }
}

std::vector<std::byte> SimTransport::address() const {
  std::vector<std::byte> bytes(kMagic.size() + sizeof(std::int32_t));
  const std::int32_t rank = rank_;
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  std::memcpy(bytes.data() + kMagic.size(), &rank, sizeof rank);
  return bytes;
}

Status SimTransport::set_address(int peer, std::span<const std::byte> address) {
  if (peer < 0 || peer >= network_->ranks()) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("rank {} is not one of the {} simulated ranks", peer,
                                        network_->ranks())};
  }
  std::int32_t rank = -1;
  if (address.size() == kMagic.size() + sizeof rank &&
      std::memcmp(address.data(), kMagic.data(), kMagic.size()) == 0) {
    std::memcpy(&rank, address.data() + kMagic.size(), sizeof rank);
  }
  if (rank != peer) {
    return Error{.code = Code::kProtocol,
                 .culprit = peer,
                 .message = fmt::format("the {} address bytes given for rank {} are not those of "
                                        "its simulated transport",
                                        address.size(), peer)};
  }
  return {};
}

Endpoint& SimTransport::endpoint(int peer) {
  std::unique_ptr<SimEndpoint>& slot = endpoints_[peer];
  if (!slot) {
    slot = std::make_unique<SimEndpoint>(network_, rank_, peer);
  }
  return *slot;
}

bool SimTransport::poll(Events* events) {
  return network_->poll(rank_, events);
}

void SimTransport::notify(int peer, const Notice& notice) {
  network_->notify(rank_, peer, notice);
}

void SimTransport::wait_descriptors(std::vector<int>* /*fds*/) {}

void SimTransport::shutdown() {
  network_->leave(rank_);
}

}  // namespace isthmus
