// Goal: pairs of interfaces become rails; further flows are opened when much data passes, by the
// lower rank, and carry chunks in any order so that every byte arrives once. Method: pure
// functions; ranks in one process with several flows over loopback; a raw peer that sends chunks
// out of order, twice and wrong.
#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "tests/transport/tcp_raw_peer.h"
#include "tests/transport/tcp_world.h"
#include "transport/tcp/chunk_set.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/rails.h"

namespace isthmus::tcp_test {
namespace {

tcp::Candidate at(std::array<std::uint8_t, 4> ip, std::uint8_t interface) {
  tcp::Candidate out;
  std::copy(ip.begin(), ip.end(), out.ip.begin());
  out.prefix = 24;
  out.loopback = ip[0] == 127;
  out.port = 1;
  out.interface = interface;
  return out;
}

std::vector<std::string> texts(const std::vector<tcp::Rail>& rails) {
  std::vector<std::string> out;
  std::transform(rails.begin(), rails.end(), std::back_inserter(out),
                 [](const tcp::Rail& rail) { return to_string(rail); });
  return out;
}

using Texts = std::vector<std::string>;

TEST(TcpRails, InterfacesOfOneSubnetMakeRails) {
  tcp::Address ours;
  tcp::Address theirs;
  ours.candidates = {at({10, 0, 0, 1}, 0), at({10, 0, 1, 1}, 1), at({10, 0, 1, 7}, 1),
                     at({10, 0, 2, 1}, 2), at({127, 0, 0, 1}, 3)};
  theirs.candidates = {at({10, 0, 1, 2}, 0), at({10, 0, 0, 2}, 1), at({10, 0, 3, 2}, 2),
                       at({127, 0, 0, 1}, 3)};
  EXPECT_EQ(texts(rails_between(ours, theirs, ours.candidates[0], theirs.candidates[1], false)),
            (Texts{"10.0.0.1 to 10.0.0.2:1", "10.0.1.1 to 10.0.1.2:1"}));
  // Named interfaces that share no subnet are paired too.
  EXPECT_EQ(texts(rails_between(ours, theirs, ours.candidates[0], theirs.candidates[1], true)),
            (Texts{"10.0.0.1 to 10.0.0.2:1", "10.0.1.1 to 10.0.1.2:1", "10.0.2.1 to 10.0.3.2:1"}));
  // Loopback stays alone; an end that nobody told leads to no rails.
  EXPECT_EQ(texts(rails_between(ours, theirs, ours.candidates[4], theirs.candidates[3], true)),
            (Texts{"here to 127.0.0.1:1"}));
  EXPECT_TRUE(rails_between(ours, theirs, ours.candidates[0], at({9, 9, 9, 9}, 0), true).empty());
}

TEST(TcpChunkSet, AnyOrderAndDuplicates) {
  const std::uint64_t seed = 7;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (const std::size_t window : {1U, 3U, 40U, 70U, 1000U}) {
    SCOPED_TRACE(window);
    std::vector<std::uint32_t> order(1000);
    std::iota(order.begin(), order.end(), 0U);
    for (std::size_t i = 0; i < order.size(); i += window) {
      std::shuffle(order.begin() + static_cast<std::ptrdiff_t>(i),
                   order.begin() + static_cast<std::ptrdiff_t>(std::min(i + window, order.size())),
                   random);
    }
    tcp::ChunkSet set;
    std::vector<bool> model(order.size() + 200);
    for (const std::uint32_t chunk : order) {
      set.add(chunk);
      model[chunk] = true;
      const auto missing = std::find(model.begin(), model.end(), false);
      ASSERT_EQ(set.below(), static_cast<std::uint32_t>(missing - model.begin()));
      for (std::uint32_t i = 0; i < model.size();
           i += 1 + static_cast<std::uint32_t>(random() % 9)) {
        ASSERT_EQ(set.contains(i), model[i]) << i;
      }
    }
  }
}

struct Traffic {
  std::vector<std::vector<std::byte>> out;
  std::vector<std::vector<std::byte>> in;
};

// Messages of many sizes in both directions, all at once, and whether they arrive whole.
void exchange_bulk(TcpWorld* world, std::uint64_t seed, int messages) {
  std::mt19937_64 random(seed);
  std::array<Traffic, 2> traffic;
  for (int i = 0; i < messages; ++i) {
    for (const int rank : {0, 1}) {
      Traffic& mine = traffic[static_cast<std::size_t>(rank)];
      const std::size_t bytes = random() % 3 == 0 ? random() % 9000 : random() % 4'000'000;
      mine.out.push_back(pattern(bytes, random()));
      mine.in.emplace_back(bytes);
    }
  }
  const Tag first{seed << 32, 0};
  for (int i = 0; i < messages; ++i) {
    for (const int rank : {0, 1}) {
      const auto n = static_cast<std::size_t>(i);
      const auto step = static_cast<std::uint32_t>(seed * 1000 + n);
      const Tag tag{first.operation, static_cast<std::uint32_t>(i)};
      const auto receive = [&] {
        world->recv(1 - rank, rank, tag, traffic[static_cast<std::size_t>(rank)].in[n], step);
      };
      const bool early = random() % 2 == 0;
      if (early) {
        receive();
      }
      world->send(rank, 1 - rank, tag, traffic[static_cast<std::size_t>(rank)].out[n], 0xffffffffU);
      world->turns(static_cast<int>(random() % 3));
      if (!early) {
        receive();
      }
    }
  }
  for (int i = 0; i < messages; ++i) {
    const auto step = static_cast<std::uint32_t>(seed * 1000 + static_cast<std::uint64_t>(i));
    ASSERT_TRUE(world->wait_for(0, step) && world->wait_for(1, step));
  }
  EXPECT_EQ(traffic[0].in, traffic[0].out);
  EXPECT_EQ(traffic[1].in, traffic[1].out);
}

tcp::Lane& lane_of(TcpWorld* world, int rank) {
  return static_cast<tcp::Lane&>(world->at(rank).endpoint(1 - rank));
}

class TcpFlows : public testing::TestWithParam<bool> {};

TEST_P(TcpFlows, OpenWhenMuchPassesAndEveryByteArrives) {
  TcpWorld world(2, [](TcpOptions* options) {
    options->flows = 4;
    options->checksums = GetParam();
  });
  world.exchange(0, 1);
  world.turns(100);
  EXPECT_EQ(lane_of(&world, 0).flow_count(), 1U);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    exchange_bulk(&world, seed, 12);
    world.exchange(0, 1);
  }
  ASSERT_TRUE(world.run_until(
      [&] { return lane_of(&world, 0).flow_count() == 4 && lane_of(&world, 1).flow_count() == 4; },
      "four flows"));
  for (std::uint64_t seed = 11; seed <= 16; ++seed) {
    SCOPED_TRACE(seed);
    exchange_bulk(&world, seed, 12);
    world.exchange(0, 1);
  }
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(world.events(rank).dead.empty() && world.events(rank).notices.empty());
  }
}

// The higher rank alone sends: the lower one opens the flows all the same.
TEST_P(TcpFlows, OpenForAReceiverToo) {
  TcpWorld world(2, [](TcpOptions* options) {
    options->flows = 2;
    options->checksums = GetParam();
  });
  const std::vector<std::byte> out = pattern(3'000'000, 5);
  std::vector<std::byte> in(out.size());
  for (std::uint32_t i = 0; i < 4; ++i) {
    std::fill(in.begin(), in.end(), std::byte{0});
    world.recv(0, 1, {5, i}, in, i);
    world.send(1, 0, {5, i}, out, 100 + i);
    ASSERT_TRUE(world.wait_for(0, i));
    EXPECT_EQ(in, out);
  }
  EXPECT_TRUE(world.run_until([&] { return lane_of(&world, 1).flow_count() == 2; }, "two flows"));
}

INSTANTIATE_TEST_SUITE_P(Checksums, TcpFlows, testing::Bool());

TEST(TcpFlowsCancel, BuffersAreNotTouchedAfterwards) {
  TcpWorld world(2, [](TcpOptions* options) { options->flows = 3; });
  exchange_bulk(&world, 1, 10);
  const std::vector<std::byte> out = pattern(3'000'000, 5);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const std::uint64_t operation = 0x900 + static_cast<std::uint64_t>(round);
    std::vector<std::byte> in(out.size());
    std::vector<std::byte> source = out;
    world.recv(1, 0, {operation, 0}, in, 1);
    world.send(0, 1, {operation, 0}, source, 2);
    world.turns(round % 20);
    world.at(1).endpoint(0).cancel(operation);
    const std::vector<std::byte> before = in;
    world.turns(round % 7);
    world.at(0).endpoint(1).cancel(operation);
    std::fill(source.begin(), source.end(), std::byte{0xee});
    world.turns(20);
    ASSERT_EQ(in, before);
  }
  exchange_bulk(&world, 2, 10);
}

// Chunks may come in any order and twice; one whose place does not fit its number ends the lane.
TEST(TcpFlowsRaw, ChunksOutOfOrderTwiceAndWrong) {
  for (const bool wrong : {false, true}) {
    SCOPED_TRACE(wrong);
    TcpWorld world(2);
    RawPeer peer(&world, 1);
    peer.shake_hands(0, 1, 2);
    const std::vector<std::byte> out = pattern(25'000, 3);
    std::vector<std::byte> in(out.size());
    world.recv(1, 0, {3, 0}, in, 1);
    const auto chunk = [&](std::uint32_t number, std::size_t offset, std::size_t bytes) {
      tcp::FrameHeader header = RawPeer::frame(tcp::FrameType::kChunk, 0, bytes, {3, 0});
      header.message_bytes = out.size();
      header.chunk = number;
      header.offset = offset;
      EXPECT_TRUE(peer.send(header, std::span(out).subspan(offset, bytes)));
    };
    chunk(2, 20'000, 5'000);
    chunk(0, 0, 10'000);
    chunk(2, 20'000, 5'000);
    chunk(0, 0, 10'000);
    if (wrong) {
      chunk(1, 9'000, 10'000);
      ASSERT_TRUE(world.wait_for(1, 1));
      EXPECT_EQ(world.outcome(1, 1).code, Code::kProtocol);
    } else {
      world.turns(50);
      EXPECT_FALSE(world.completed(1, 1));
      chunk(1, 10'000, 10'000);
      ASSERT_TRUE(world.wait_for(1, 1));
      EXPECT_FALSE(world.outcome(1, 1).failed);
      EXPECT_EQ(in, out);
    }
  }
}

// What completed sends carried comes before the goodbye, on whatever flow it went.
TEST(TcpFlowsEnd, AGoodbyeOvertakesNoChunk) {
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    TcpWorld world(2, [](TcpOptions* options) { options->flows = 4; });
    exchange_bulk(&world, 1, 6);
    const std::vector<std::byte> out = pattern(500'000, 9);
    std::vector<std::byte> in(out.size());
    world.recv(1, 0, {9, 0}, in, 7);
    world.turns(20);  // the credit is there
    world.send(0, 1, {9, 0}, out, 8);
    ASSERT_TRUE(world.wait_for(0, 8));
    // Rank 1 looks at nothing while rank 0 sends a small message and leaves.
    std::vector<std::byte> last(1000);
    world.recv(1, 0, {9, 1}, last, 9);
    world.send(0, 1, {9, 1}, std::span(out).first(last.size()), 10);
    for (int turns = 0; turns < round; ++turns) {
      world.at(0).poll(&world.events(0));
    }
    world.at(0).shutdown();
    ASSERT_TRUE(world.wait_for(1, 7) && world.wait_for(1, 9));
    EXPECT_FALSE(world.outcome(1, 7).failed || world.outcome(1, 9).failed);
    EXPECT_EQ(in, out);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), out.begin()));
    world.run_until([&] { return !world.events(1).notices.empty(); }, "the goodbye");
    EXPECT_TRUE(world.events(1).dead.empty());
  }
}

// The end of any flow is still the end of the pair.
TEST(TcpFlowsEnd, ADeathAndAGoodbyeAreToldOnce) {
  for (const bool goodbye : {false, true}) {
    SCOPED_TRACE(goodbye);
    TcpWorld world(2, [](TcpOptions* options) { options->flows = 3; });
    exchange_bulk(&world, 1, 10);
    std::vector<std::byte> in(100);
    world.recv(0, 1, {77, 0}, in, 9);
    if (goodbye) {
      world.at(1).shutdown();
    } else {
      world.kill(1);
    }
    ASSERT_TRUE(world.wait_for(0, 9));
    EXPECT_EQ(world.outcome(0, 9).code, Code::kPeerDead);
    world.turns(50);
    EXPECT_EQ(world.events(0).dead.size(), goodbye ? 0U : 1U);
    EXPECT_EQ(world.events(0).notices.size(), goodbye ? 1U : 0U);
  }
}

}  // namespace
}  // namespace isthmus::tcp_test
