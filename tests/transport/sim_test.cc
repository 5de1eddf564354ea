// Goal: what is special to the simulated network: a virtual clock, seeded orders, links, stalls,
// deaths, bounds. Method: transports of one network, polled by the test; nothing waits in real
// time.
#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "transport/sim/sim_network.h"

namespace isthmus {
namespace {

constexpr std::uint64_t kOperation = make_operation(1, 1, false);

// Ranks of a network and what came to them.
class Ranks {
 public:
  explicit Ranks(const SimConfig& config) : network(config) {
    for (int rank = 0; rank < config.ranks; ++rank) {
      transports.push_back(network.transport(rank));
    }
    seen.resize(transports.size());
  }

  Result<Endpoint::Post> send(int from, int to, std::uint32_t message,
                              std::span<const std::byte> data) {
    return transports[static_cast<std::size_t>(from)]->endpoint(to).post_send(
        {kOperation, message}, {}, data, {nullptr, message});
  }

  Result<Endpoint::Post> recv(int at, int from, std::uint32_t message, std::span<std::byte> data) {
    return transports[static_cast<std::size_t>(at)]->endpoint(from).post_recv(
        {kOperation, message}, {}, data, {nullptr, message});
  }

  bool poll(int rank) {
    const std::size_t i = static_cast<std::size_t>(rank);
    return transports[i]->poll(&seen[i]);
  }

  // Until nobody has had anything to do for three turns: nothing is on its way.
  void drain() {
    for (int quiet = 0; quiet < 3;) {
      bool worked = false;
      for (int rank = 0; rank < network.ranks(); ++rank) {
        worked = poll(rank) || worked;
      }
      quiet = worked ? 0 : quiet + 1;
    }
  }

  SimNetwork network;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Events> seen;
};

std::vector<std::uint32_t> order_of_messages(std::uint64_t seed) {
  SimConfig config;
  config.seed = seed;
  Ranks ranks(config);
  std::array<std::byte, 8> out{};
  std::array<std::array<std::byte, 8>, 40> in{};
  for (std::uint32_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(ranks.recv(1, 0, i, in[i]).ok());
    EXPECT_TRUE(ranks.send(0, 1, i, out).ok());
  }
  ranks.drain();
  std::vector<std::uint32_t> order;
  for (const Completion& completion : ranks.seen[1].completions) {
    order.push_back(completion.token.step);
  }
  order.push_back(static_cast<std::uint32_t>(ranks.network.now_ns()));
  return order;
}

TEST(SimNetwork, TheSeedDecidesTheOrder) {
  EXPECT_EQ(order_of_messages(5), order_of_messages(5));
  EXPECT_NE(order_of_messages(5), order_of_messages(6));
  std::vector<std::uint32_t> order = order_of_messages(7);
  order.pop_back();
  EXPECT_EQ(order.size(), 40U);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST(SimNetwork, LatencyAndBandwidthAreTheLinks) {
  SimConfig config;
  config.jitter_ns = 0;
  config.link = {.latency_ns = 5000, .ns_per_kib = 0};
  Ranks ranks(config);
  ranks.network.set_link(0, 1, {.latency_ns = 7000, .ns_per_kib = 1024});
  std::vector<std::byte> out(100'000);
  std::vector<std::byte> in(100'000);
  ASSERT_TRUE(ranks.recv(1, 0, 0, in).ok());
  ASSERT_EQ(*ranks.send(0, 1, 0, out), Endpoint::Post::kDone);
  ranks.drain();
  EXPECT_EQ(ranks.seen[1].completions.size(), 1U);
  // 1 ns a byte and the frame's own 64.
  EXPECT_EQ(ranks.network.now_ns(), 7000 + 100'064);
  ASSERT_TRUE(ranks.recv(0, 1, 0, in).ok());
  ASSERT_TRUE(ranks.send(1, 0, 0, out).ok());
  ranks.drain();
  EXPECT_EQ(ranks.network.now_ns(), 7000 + 100'064 + 5000);
}

TEST(SimNetwork, ARendezvousSendWaitsForItsReceive) {
  SimConfig config;
  config.eager_bytes_max = SimConfig::kNoneEager;
  Ranks ranks(config);
  std::array<std::byte, 16> out{std::byte{1}};
  std::array<std::byte, 16> in{};
  ASSERT_EQ(*ranks.send(0, 1, 0, out), Endpoint::Post::kPosted);
  ASSERT_EQ(*ranks.send(0, 1, 1, {}), Endpoint::Post::kPosted);
  ranks.drain();
  EXPECT_TRUE(ranks.seen[0].completions.empty());
  ASSERT_TRUE(ranks.recv(1, 0, 0, in).ok());
  ranks.drain();
  ASSERT_EQ(ranks.seen[0].completions.size(), 1U);
  EXPECT_EQ(ranks.seen[0].completions[0].token.step, 0U);
  EXPECT_EQ(in, out);
}

TEST(SimNetwork, WithoutAutoAdvanceTimeStandsStill) {
  SimConfig config;
  config.auto_advance = false;
  config.jitter_ns = 0;
  Ranks ranks(config);
  std::array<std::byte, 8> buffer{};
  ASSERT_TRUE(ranks.recv(1, 0, 0, buffer).ok());
  ASSERT_TRUE(ranks.send(0, 1, 0, buffer).ok());
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(ranks.poll(0) || ranks.poll(1));
  }
  EXPECT_EQ(ranks.network.now_ns(), 0);
  ranks.network.advance_to(500);
  EXPECT_FALSE(ranks.poll(1));
  ranks.network.advance_to(2000);
  EXPECT_TRUE(ranks.poll(1));
  EXPECT_EQ(ranks.seen[1].completions.size(), 1U);
  EXPECT_FALSE(ranks.network.step());
}

TEST(SimNetwork, ARankDiesWhenItIsTold) {
  SimConfig config;
  config.ranks = 3;
  Ranks ranks(config);
  std::array<std::byte, 8> in{};
  ASSERT_TRUE(ranks.recv(0, 2, 0, in).ok());
  ranks.network.kill_at(2, 1'000'000);
  ranks.network.advance_to(999'999);
  ranks.transports[2]->poll(&ranks.seen[2]);
  EXPECT_TRUE(ranks.send(2, 1, 0, in).ok());
  ranks.drain();
  EXPECT_EQ(ranks.seen[0].dead, std::vector<int>{2});
  EXPECT_EQ(ranks.seen[1].dead, std::vector<int>{2});
  ASSERT_EQ(ranks.seen[0].completions.size(), 1U);
  EXPECT_EQ(ranks.seen[0].completions[0].code, Code::kPeerDead);
  EXPECT_EQ(ranks.network.now_ns(), 1'000'000 + config.death_notice_ns);
  const Result<Endpoint::Post> own = ranks.send(2, 0, 1, in);
  ASSERT_FALSE(own.ok());
  EXPECT_EQ(own.error().code, Code::kAborted);
}

TEST(SimNetwork, ATransportThatJustGoesIsADeath) {
  Ranks ranks(SimConfig{});
  ranks.transports[1].reset();
  Events events;
  for (int i = 0; i < 10; ++i) {
    ranks.transports[0]->poll(&events);
  }
  EXPECT_EQ(events.dead, std::vector<int>{1});
}

TEST(SimNetwork, AStalledRankGoesOnLater) {
  Ranks ranks(SimConfig{});
  std::array<std::byte, 8> out{std::byte{3}};
  std::array<std::byte, 8> in{};
  ASSERT_TRUE(ranks.recv(1, 0, 0, in).ok());
  ASSERT_TRUE(ranks.send(0, 1, 0, out).ok());
  ranks.network.stall(1, 50'000'000);
  ranks.network.advance_to(49'999'999);
  EXPECT_FALSE(ranks.poll(1));
  EXPECT_NE(in, out);
  // Its last message and its goodbye come in this order all the same.
  ranks.transports[0]->shutdown();
  ranks.drain();
  EXPECT_GE(ranks.network.now_ns(), 50'000'000);
  ASSERT_EQ(ranks.seen[1].completions.size(), 1U);
  EXPECT_FALSE(ranks.seen[1].completions[0].failed);
  EXPECT_EQ(in, out);
  ASSERT_EQ(ranks.seen[1].notices.size(), 1U);
  EXPECT_EQ(ranks.seen[1].notices[0].kind, Notice::Kind::kGoodbye);
}

TEST(SimNetwork, ADroppedConnectionConcernsTwoRanks) {
  SimConfig config;
  config.ranks = 3;
  Ranks ranks(config);
  std::array<std::byte, 8> buffer{};
  ASSERT_TRUE(ranks.recv(0, 1, 0, buffer).ok());
  ASSERT_TRUE(ranks.recv(0, 2, 0, buffer).ok());
  ranks.network.disconnect(0, 1);
  ranks.drain();
  EXPECT_EQ(ranks.seen[0].dead, std::vector<int>{1});
  EXPECT_EQ(ranks.seen[1].dead, std::vector<int>{0});
  EXPECT_TRUE(ranks.seen[2].dead.empty());
  EXPECT_EQ(ranks.seen[0].completions.size(), 1U);
  ASSERT_TRUE(ranks.send(2, 0, 0, buffer).ok());
  ranks.drain();
  EXPECT_EQ(ranks.seen[0].completions.size(), 2U);
  EXPECT_FALSE(ranks.seen[0].completions[1].failed);
}

TEST(SimNetwork, LanesAreBounded) {
  SimConfig config;
  config.lane_posts_max = 4;
  config.lane_eager_bytes_max = 1000;
  Ranks ranks(config);
  std::array<std::byte, 400> buffer{};
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(*ranks.recv(0, 1, i, buffer), Endpoint::Post::kPosted);
  }
  EXPECT_EQ(*ranks.recv(0, 1, 4, buffer), Endpoint::Post::kBusy);
  EXPECT_EQ(*ranks.send(0, 1, 0, buffer), Endpoint::Post::kDone);
  EXPECT_EQ(*ranks.send(0, 1, 1, buffer), Endpoint::Post::kDone);
  EXPECT_EQ(*ranks.send(0, 1, 2, buffer), Endpoint::Post::kBusy);
  // Room comes with the receive, not with the arrival.
  ranks.drain();
  EXPECT_EQ(*ranks.send(0, 1, 2, buffer), Endpoint::Post::kBusy);
  ASSERT_TRUE(ranks.recv(1, 0, 0, buffer).ok());
  EXPECT_EQ(*ranks.send(0, 1, 2, buffer), Endpoint::Post::kDone);
}

TEST(SimNetwork, OneTagTwiceIsRefused) {
  SimConfig config;
  config.eager_bytes_max = SimConfig::kNoneEager;
  Ranks ranks(config);
  std::array<std::byte, 8> buffer{};
  ASSERT_TRUE(ranks.send(0, 1, 3, buffer).ok());
  ASSERT_TRUE(ranks.recv(0, 1, 3, buffer).ok());
  EXPECT_EQ(ranks.send(0, 1, 3, buffer).error().code, Code::kInvalidArgument);
  EXPECT_EQ(ranks.recv(0, 1, 3, buffer).error().code, Code::kInvalidArgument);
}

// A death amid traffic of all kinds, at every moment of it: nothing is left hanging.
TEST(SimNetwork, DeathAtAnyMoment) {
  for (std::int64_t at_ns = 0; at_ns < 40'000; at_ns += 777) {
    SCOPED_TRACE(at_ns);
    SimConfig config;
    config.ranks = 3;
    config.seed = static_cast<std::uint64_t>(at_ns);
    config.eager_bytes_max = 100;
    config.chunk_bytes = 1000;
    Ranks ranks(config);
    std::vector<std::vector<std::byte>> buffers(60, std::vector<std::byte>(5000));
    std::size_t next = 0;
    std::array<std::size_t, 3> owed{};
    for (std::uint32_t message = 0; message < 5; ++message) {
      const std::size_t size = message % 2 == 0 ? 50 : 5000;
      for (int from = 0; from < 3; ++from) {
        for (int to = 0; to < 3; ++to) {
          if (from != to) {
            const std::size_t f = static_cast<std::size_t>(from);
            const Result<Endpoint::Post> sent =
                ranks.send(from, to, message, std::span(buffers[next++]).first(size));
            owed[f] += *sent == Endpoint::Post::kPosted ? 1U : 0U;
            ASSERT_TRUE(ranks.recv(to, from, message, std::span(buffers[next++]).first(size)).ok());
            ++owed[static_cast<std::size_t>(to)];
          }
        }
      }
    }
    ranks.network.kill_at(1, at_ns);
    ranks.drain();
    for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
      EXPECT_EQ(ranks.seen[rank].completions.size(), owed[rank]);
      EXPECT_EQ(ranks.seen[rank].dead, std::vector<int>{1});
    }
  }
}

}  // namespace
}  // namespace isthmus
