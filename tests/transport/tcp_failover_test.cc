// Goal: while one flow of a pair lives, the loss of others costs no byte and no message, in
// whatever state it meets them; lost flows come back; when the last goes the pair is over and the
// error says so. Method: ranks in one process with several flows over loopback whose sockets the
// test resets in the middle of traffic, which throws away what both kernels hold; the seed is
// printed.
#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/transport/tcp_world.h"
#include "transport/tcp/lane.h"

namespace isthmus::tcp {

struct LaneTestAccess {
  // Sockets of the flows that are there, the one that carries everything first.
  static std::vector<int> sockets(const Lane& lane) {
    std::vector<int> out;
    for (const std::unique_ptr<Flow>& flow : lane.flows_) {
      if (flow->fd.valid()) {
        out.push_back(flow->fd.get());
      }
    }
    return out;
  }

  static bool settled(const Lane& lane) { return lane.peer_acked_ != 0; }

  static std::size_t kept(const Lane& lane) { return lane.kept_.size(); }
};

}  // namespace isthmus::tcp

namespace isthmus::tcp_test {
namespace {

using tcp::LaneTestAccess;

tcp::Lane& lane_of(TcpWorld* world, int rank) {
  return static_cast<tcp::Lane&>(world->at(rank).endpoint(1 - rank));
}

// Both kernels forget the connection and all that they hold of it.
void reset(int socket) {
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  ASSERT_EQ(::connect(socket, &nowhere, sizeof(nowhere)), 0);
}

bool flows_are(TcpWorld* world, std::size_t count) {
  return world->run_until(
      [&] {
        return lane_of(world, 0).flow_count() == count && lane_of(world, 1).flow_count() == count;
      },
      "the flows");
}

// Brings up so many flows, all in use.
void widen(TcpWorld* world, std::size_t flows) {
  world->exchange(0, 1);
  const std::vector<std::byte> out = pattern(2'000'000, 1);
  std::array<std::vector<std::byte>, 2> in;
  for (const int rank : {0, 1}) {
    in[static_cast<std::size_t>(rank)].resize(out.size());
    world->recv(1 - rank, rank, {1, 1}, in[static_cast<std::size_t>(rank)], 1);
    world->send(rank, 1 - rank, {1, 1}, out, 2);
  }
  ASSERT_TRUE(world->wait_for(0, 1) && world->wait_for(1, 1));
  ASSERT_TRUE(flows_are(world, flows));
  for (int i = 0; i < 2; ++i) {
    world->exchange(0, 1);
  }
  ASSERT_TRUE(world->run_until(
      [&] {
        return LaneTestAccess::settled(lane_of(world, 0)) &&
               LaneTestAccess::settled(lane_of(world, 1));
      },
      "acks"));
}

struct Message {
  std::vector<std::byte> out;
  std::vector<std::byte> in;
  bool early = false;  // its receive is posted before it is sent
};

class Storm {
 public:
  Storm(TcpWorld* world, std::uint64_t seed) : world_(world), random_(seed) {}

  // Messages of all sizes both ways; meanwhile sockets of either side are reset, at most one at a
  // time, and never the last.
  void run(std::uint64_t operation, std::size_t messages) {
    std::array<std::vector<Message>, 2> all;
    for (std::vector<Message>& each : all) {
      for (std::size_t i = 0; i < messages; ++i) {
        const std::size_t bytes = random_() % 2 == 0 ? random_() % 9000 : random_() % 1'500'000;
        each.push_back(
            {pattern(bytes, random_()), std::vector<std::byte>(bytes), random_() % 2 == 0});
      }
    }
    for (std::size_t i = 0; i < messages; ++i) {
      for (const int rank : {0, 1}) {
        post(operation, rank, i, &all[static_cast<std::size_t>(rank)][i]);
        turn();
      }
    }
    const auto step = [&](std::size_t i) {
      return static_cast<std::uint32_t>(operation * 1000 + i);
    };
    const auto done = [&](std::size_t i) {
      return world_->completed(0, step(i)) && world_->completed(1, step(i));
    };
    for (std::size_t i = 0; i < messages; ++i) {
      ASSERT_TRUE(world_->run_until(
          [&] {
            turn();
            return done(i);
          },
          "a message"));
    }
    for (const std::vector<Message>& each : all) {
      for (const Message& message : each) {
        ASSERT_TRUE(message.in == message.out);
      }
    }
  }

  int resets() const { return resets_; }

 private:
  void post(std::uint64_t operation, int rank, std::size_t i, Message* message) {
    const Tag tag{operation, static_cast<std::uint32_t>(i)};
    const auto step = static_cast<std::uint32_t>(operation * 1000 + i);
    if (message->early) {
      world_->recv(1 - rank, rank, tag, message->in, step);
    }
    world_->send(rank, 1 - rank, tag, message->out, 0xffffffffU);
    if (!message->early) {
      turn();
      world_->recv(1 - rank, rank, tag, message->in, step);
    }
  }

  void turn() {
    for (std::uint64_t turns = random_() % 4; turns > 0; --turns) {
      const int rank = random_() % 2 == 0 ? 0 : 1;
      world_->at(rank).poll(&world_->events(rank));
    }
    if (random_() % 16 != 0 || lane_of(world_, 0).flow_count() < 3 ||
        lane_of(world_, 1).flow_count() < 3) {
      return;
    }
    const std::vector<int> sockets =
        LaneTestAccess::sockets(lane_of(world_, random_() % 2 == 0 ? 0 : 1));
    reset(sockets[random_() % sockets.size()]);
    ++resets_;
    // Both see it before the next one goes.
    world_->turns(3);
  }

  TcpWorld* world_;
  std::mt19937_64 random_;
  int resets_ = 0;
};

TEST(TcpFailover, EveryByteArrivesWhateverIsLost) {
  constexpr std::uint64_t kFirst = 100;
  for (std::uint64_t seed = kFirst; seed < kFirst + 6; ++seed) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    SCOPED_TRACE(seed);
    TcpWorld world(2, [&](TcpOptions* options) {
      options->flows = 4;
      options->checksums = seed % 2 == 0;
    });
    widen(&world, 4);
    Storm storm(&world, seed);
    for (std::uint64_t operation = 10; operation < 20; ++operation) {
      ASSERT_NO_FATAL_FAILURE(storm.run(operation, 20));
    }
    std::printf("%d resets\n", storm.resets());
    EXPECT_GE(storm.resets(), 3);
    ASSERT_TRUE(flows_are(&world, 4));
    for (int i = 0; i < 100; ++i) {
      world.exchange(0, 1);
    }
    for (const int rank : {0, 1}) {
      EXPECT_TRUE(world.events(rank).dead.empty() && world.events(rank).notices.empty());
      EXPECT_LT(LaneTestAccess::kept(lane_of(&world, rank)), 80U);
    }
  }
}

// A cancelled operation is over on both sides, also when its chunks are sent again.
TEST(TcpFailover, CancelledOperationsEnd) {
  TcpWorld world(2, [](TcpOptions* options) { options->flows = 3; });
  widen(&world, 3);
  const std::vector<std::byte> out = pattern(3'000'000, 5);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const std::uint64_t operation = 0x900 + static_cast<std::uint64_t>(round);
    std::vector<std::byte> in(out.size());
    world.recv(1, 0, {operation, 0}, in, 1);
    const auto step = static_cast<std::uint32_t>(1000 + round);
    world.send(0, 1, {operation, 0}, out, step);
    world.turns(round % 20);
    if (round % 2 == 0 && lane_of(&world, 0).flow_count() == 3) {
      reset(LaneTestAccess::sockets(lane_of(&world, 0))[static_cast<std::size_t>(round / 2 % 3)]);
    }
    world.turns(round % 3);
    world.at(1).endpoint(0).cancel(operation);
    const std::vector<std::byte> before = in;
    ASSERT_TRUE(world.wait_for(0, step));
    EXPECT_FALSE(world.outcome(0, step).failed);
    ASSERT_EQ(in, before);
    ASSERT_TRUE(flows_are(&world, 3));
  }
}

TEST(TcpFailover, TheLastLossIsADeathThatNamesTheOthers) {
  TcpWorld world(2, [](TcpOptions* options) { options->flows = 2; });
  widen(&world, 2);
  std::array<std::byte, 10> in{};
  world.recv(0, 1, {7, 7}, in, 7);
  for (const int socket : LaneTestAccess::sockets(lane_of(&world, 0))) {
    reset(socket);
  }
  ASSERT_TRUE(world.wait_for(0, 7));
  EXPECT_EQ(world.outcome(0, 7).code, Code::kPeerDead);
  EXPECT_EQ(world.events(0).dead, std::vector<int>{1});
  const Result<Endpoint::Post> later = world.at(0).endpoint(1).post_send({2, 2}, {}, in, {});
  ASSERT_FALSE(later.ok());
  EXPECT_NE(later.error().message.find("rank 1"), std::string::npos);
  EXPECT_NE(later.error().message.find("lost before: "), std::string::npos)
      << later.error().message;
}

}  // namespace
}  // namespace isthmus::tcp_test
