#pragma once

#include <map>
#include <memory>
#include <vector>

#include "transport/endpoint.h"
#include "transport/sim/sim_network.h"

namespace isthmus {

// One peer as a simulated rank sees it. Only forwards to the network.
class SimEndpoint final : public Endpoint {
 public:
  SimEndpoint(SimNetwork* network, int rank, int peer);

  Result<Post> post_send(const Tag& tag, const OperationInfo& info, std::span<const std::byte> data,
                         Token token) override;
  Result<Post> post_recv(const Tag& tag, const OperationInfo& info, std::span<std::byte> data,
                         Token token) override;
  bool offers(const Tag& tag) const override;
  void cancel(std::uint64_t operation) override;

 private:
  SimNetwork* network_;  // not owned
  int rank_;
  int peer_;
};

// One rank of a SimNetwork, which outlives it. It has no descriptors to wait for.
// Thread rule: the network's thread.
class SimTransport final : public Transport {
 public:
  SimTransport(SimNetwork* network, int rank);
  ~SimTransport() override;

  SimTransport(const SimTransport&) = delete;
  SimTransport& operator=(const SimTransport&) = delete;

  std::string_view name() const override { return "sim"; }

  std::vector<std::byte> address() const override;
  Status set_address(int peer, std::span<const std::byte> address) override;
  Endpoint& endpoint(int peer) override;
  bool poll(Events* events) override;
  void notify(int peer, const Notice& notice) override;
  void wait_descriptors(std::vector<int>* fds) override;
  void shutdown() override;

 private:
  SimNetwork* network_;  // not owned
  int rank_;
  std::map<int, std::unique_ptr<SimEndpoint>> endpoints_;
};

}  // namespace isthmus
