#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/conformance/world.h"
#include "transport/tcp/tcp_transport.h"

namespace isthmus::conformance {

// Ranks in one process that talk over loopback.
class TcpWorld final : public World {
 public:
  TcpWorld(int ranks, bool checksums, int flows) {
    for (int rank = 0; rank < ranks; ++rank) {
      TcpOptions options;
      options.rank = rank;
      options.size = ranks;
      options.incarnation = 0x1234;
      options.checksums = checksums;
      options.flows = flows;
      Result<std::unique_ptr<TcpTransport>> transport = TcpTransport::create(options);
      EXPECT_TRUE(transport.ok()) << transport.error().message;
      transports_.push_back(std::move(transport).value());
    }
  }

  Transport& rank(int rank) override { return *transports_[static_cast<std::size_t>(rank)]; }

  // Its destruction without a goodbye is what peers see of a process that ends.
  bool kill(int rank) override {
    transports_[static_cast<std::size_t>(rank)].reset();
    return true;
  }

 private:
  std::vector<std::unique_ptr<TcpTransport>> transports_;
};

inline std::vector<Factory> tcp_factories() {
  const auto factory = [](const char* name, bool checksums, int flows) {
    Factory made;
    made.name = name;
    made.make = [checksums, flows](int ranks, std::uint64_t /*seed*/) {
      return std::make_unique<TcpWorld>(ranks, checksums, flows);
    };
    made.eager_bytes_max = 8192;
    return made;
  };
  return {factory("tcp", false, 1), factory("tcp_checksums", true, 1),
          factory("tcp_flows", false, 3), factory("tcp_flows_checksums", true, 4)};
}

}  // namespace isthmus::conformance
