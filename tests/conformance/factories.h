#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/conformance/shm_factory.h"
#include "tests/conformance/world.h"
#include "transport/fault/fault_transport.h"
#include "transport/sim/sim_network.h"
#include "transport/trace/trace_transport.h"

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

// Wrappers must not be told from what they wrap; faults that are within the contract must not
// either.
inline std::vector<Factory> wrapped_factories() {
  SimConfig config;
  config.eager_bytes_max = 8192;
  const auto fault = [&](const char* name, std::vector<FaultRule> rules) {
    return sim_factory(name, config, [rules](std::unique_ptr<Transport> inner, int rank) {
      const FaultScript script{static_cast<std::uint64_t>(rank) + 1, rules};
      return std::make_unique<FaultTransport>(std::move(inner), script);
    });
  };
  const FaultRule busy{.kind = FaultRule::Kind::kBusy, .per_mille = 500};
  const FaultRule delay{.kind = FaultRule::Kind::kDelay, .per_mille = 700, .amount = 3};
  const FaultRule reorder{.kind = FaultRule::Kind::kReorder, .amount = 10};
  return {fault("fault_none", {}), fault("fault_busy", {busy}), fault("fault_delay", {delay}),
          fault("fault_busy_delay_reorder", {busy, delay, reorder}),
          sim_factory("trace", config, [](std::unique_ptr<Transport> inner, int rank) {
            return std::make_unique<TraceTransport>(std::move(inner), rank, 1000);
          })};
}

inline std::vector<Factory> shm_factories() {
  const FaultRule busy{.kind = FaultRule::Kind::kBusy, .per_mille = 500};
  const FaultRule delay{.kind = FaultRule::Kind::kDelay, .per_mille = 700, .amount = 3};
  return {shm_factory("shm"),
          shm_factory("shm_fault_busy_delay",
                      [busy, delay](std::unique_ptr<Transport> inner, int rank) {
                        const FaultScript script{static_cast<std::uint64_t>(rank) + 1,
                                                 {busy, delay}};
                        return std::make_unique<FaultTransport>(std::move(inner), script);
                      }),
          shm_factory("shm_trace", [](std::unique_ptr<Transport> inner, int rank) {
            return std::make_unique<TraceTransport>(std::move(inner), rank, 1000);
          })};
}

inline std::vector<Factory> all_factories() {
  std::vector<Factory> all = sim_factories();
  for (Factory& each : wrapped_factories()) {
    all.push_back(std::move(each));
  }
  for (Factory& each : shm_factories()) {
    all.push_back(std::move(each));
  }
#if __has_include("transport/tcp/tcp_transport.h")
  for (Factory& each : tcp_factories()) {
    all.push_back(std::move(each));
  }
#endif
  return all;
}

}  // namespace isthmus::conformance
