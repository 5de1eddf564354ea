#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "tests/conformance/world.h"
#include "transport/shm/shm_transport.h"

namespace isthmus::conformance {

// Ranks in one process that share memory as those of a node do: memfds, bells and all.
class ShmWorld final : public World {
 public:
  using Wrap = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>, int rank)>;

  ShmWorld(int ranks, const Wrap& wrap) {
    std::vector<ShmNode::LocalPeer> cards;
    for (int rank = 0; rank < ranks; ++rank) {
      Result<std::unique_ptr<ShmNode>> node = ShmNode::create(
          {.rank = rank, .world_size = ranks, .nonce = 0x1234, .stage_bytes = 256 << 10});
      EXPECT_TRUE(node.ok()) << node.error().message;
      nodes_.push_back(std::move(node).value());
      cards.push_back(nodes_.back()->self());
    }
    connect(cards);
    for (int rank = 0; rank < ranks; ++rank) {
      Result<std::unique_ptr<ShmTransport>> transport =
          ShmTransport::create(nodes_[static_cast<std::size_t>(rank)].get());
      EXPECT_TRUE(transport.ok()) << transport.error().message;
      std::unique_ptr<Transport> made = std::move(transport).value();
      transports_.push_back(wrap ? wrap(std::move(made), rank) : std::move(made));
    }
  }

  Transport& rank(int rank) override { return *transports_[static_cast<std::size_t>(rank)]; }

  // Its memory stays with its peers; they see the end of its sockets, as of a thread that ends.
  bool kill(int rank) override {
    transports_[static_cast<std::size_t>(rank)].reset();
    nodes_[static_cast<std::size_t>(rank)].reset();
    return true;
  }

 private:
  // The exchange of descriptors is collective: a thread for each rank.
  void connect(const std::vector<ShmNode::LocalPeer>& cards) {
    std::vector<std::thread> threads;
    for (const std::unique_ptr<ShmNode>& node : nodes_) {
      threads.emplace_back([&node, &cards] {
        std::vector<ShmNode::LocalPeer> others = cards;
        std::erase_if(
            others, [&](const ShmNode::LocalPeer& card) { return card.rank == node->self().rank; });
        const Status connected = node->connect(others, Deadline::after_ms(10'000));
        EXPECT_TRUE(connected.ok()) << connected.error().message;
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  std::vector<std::unique_ptr<ShmNode>> nodes_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

inline Factory shm_factory(const char* name, const ShmWorld::Wrap& wrap = {}) {
  Factory made;
  made.name = name;
  made.make = [wrap](int ranks, std::uint64_t /*seed*/) {
    return std::make_unique<ShmWorld>(ranks, wrap);
  };
  made.eager_bytes_max = 8192;
  return made;
}

}  // namespace isthmus::conformance
