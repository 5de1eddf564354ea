#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/conformance/world.h"
#include "transport/sim/sim_network.h"

#if __has_include("transport/tcp/tcp_transport.h")
#include "tests/conformance/tcp_factory.h"
#endif

namespace isthmus::conformance {

// Ranks of a simulated network, each perhaps wrapped.
class SimWorld final : public World {
 public:
  using Wrap = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>, int rank)>;

  SimWorld(const SimConfig& config, const Wrap& wrap) : network_(config) {
    for (int rank = 0; rank < config.ranks; ++rank) {
      std::unique_ptr<Transport> transport = network_.transport(rank);
      transports_.push_back(wrap ? wrap(std::move(transport), rank) : std::move(transport));
    }
  }

  Transport& rank(int rank) override { return *transports_[static_cast<std::size_t>(rank)]; }

  bool kill(int rank) override {
    network_.kill(rank);
    return true;
  }

 private:
  SimNetwork network_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

inline Factory sim_factory(const char* name, SimConfig config, const SimWorld::Wrap& wrap = {}) {
  Factory factory;
  factory.name = name;
  factory.make = [config, wrap](int ranks, std::uint64_t seed) mutable {
    config.ranks = ranks;
    config.seed = seed;
    return std::make_unique<SimWorld>(config, wrap);
  };
  factory.eager_bytes_max =
      config.eager_bytes_max < 0 ? 0 : static_cast<std::size_t>(config.eager_bytes_max);
  return factory;
}

inline std::vector<Factory> sim_factories() {
  SimConfig eager;
  SimConfig eager_posted;
  eager_posted.eager_done = false;
  SimConfig rendezvous;
  rendezvous.eager_bytes_max = SimConfig::kNoneEager;
  SimConfig mixed;
  mixed.eager_bytes_max = 8192;
  mixed.chunk_bytes = 1000;
  mixed.eager_done = false;
  return {sim_factory("sim_eager", eager), sim_factory("sim_eager_posted", eager_posted),
          sim_factory("sim_rendezvous", rendezvous), sim_factory("sim_mixed", mixed)};
}

inline std::vector<Factory> all_factories() {
  std::vector<Factory> all = sim_factories();
#if __has_include("transport/tcp/tcp_transport.h")
  for (Factory& each : tcp_factories()) {
    all.push_back(std::move(each));
  }
#endif
  return all;
}

}  // namespace isthmus::conformance
