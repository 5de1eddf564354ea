// Goal: of several messages to one peer those of higher priority go first, none starves, and lanes
// to other peers yield too, but never for long; every byte arrives, also when flows are lost.
// Method: the queue by itself; a raw peer that reads nothing until all is posted and then looks at
// the order of the frames; ranks in one process whose progress is counted in bytes handed to
// sockets. No outcome depends on time: how long a lane yields is set to never, or to no time.
#include <algorithm>
#include <array>
#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/transport/tcp_raw_peer.h"
#include "tests/transport/tcp_world.h"
#include "transport/tcp/bulk_queue.h"
#include "transport/tcp/lane.h"

namespace isthmus::tcp {

struct LaneTestAccess {
  // Bytes of a message that were put in frames; all of them once it is forgotten.
  static std::size_t sent(const Lane& lane, const Tag& tag, std::size_t bytes) {
    const Outgoing* out = lane.outgoing_.find(tag);
    return out == nullptr ? bytes : out->offset;
  }

  static int socket(const Lane& lane, std::size_t flow) {
    const std::unique_ptr<Flow>& at = lane.flows_[flow];
    return at->fd.valid() ? at->fd.get() : -1;
  }

  static bool settled(const Lane& lane) { return lane.peer_acked_ != 0; }
};

}  // namespace isthmus::tcp

namespace isthmus::tcp_test {
namespace {

using tcp::BulkQueue;
using tcp::kChunkBytes;
using tcp::LaneTestAccess;
using tcp::Outgoing;

constexpr std::size_t kBackgroundChunk = std::size_t{64} << 10;
constexpr std::int64_t kForeverMs = 3'600'000;

OperationInfo info_of(Priority priority) {
  OperationInfo out;
  out.priority = priority;
  return out;
}

tcp::Lane& lane_of(TcpWorld* world, int rank, int peer) {
  return static_cast<tcp::Lane&>(world->at(rank).endpoint(peer));
}

// The messages of a queue as letters: each is pushed again until its chunks are done.
std::string drain(BulkQueue* queue, std::vector<std::pair<Outgoing*, int>> left) {
  std::string order;
  while (!queue->empty()) {
    Outgoing* out = queue->pop();
    order += static_cast<char>(out->tag.message);
    const auto at =
        std::find_if(left.begin(), left.end(), [&](const auto& each) { return each.first == out; });
    if (--at->second > 0) {
      queue->push(out);
    }
  }
  return order;
}

Outgoing message(char letter, Priority priority) {
  Outgoing out;
  out.tag.message = static_cast<unsigned char>(letter);
  out.info.priority = priority;
  return out;
}

using Counts = decltype(tcp::BulkBoard::counts);

TEST(BulkQueue, HigherFirstEqualInTurnNoneStarves) {
  Outgoing background = message('b', Priority::kBackground);
  Outgoing normal = message('n', Priority::kNormal);
  Outgoing first = message('u', Priority::kUrgent);
  Outgoing second = message('v', Priority::kUrgent);
  tcp::BulkBoard board;
  const auto& counts = board.counts;
  BulkQueue queue(&board);
  for (Outgoing* out : {&background, &normal, &first, &second}) {
    queue.push(out);
  }
  EXPECT_EQ(counts, (Counts{2, 1, 1}));
  EXPECT_EQ(drain(&queue, {{&background, 3}, {&normal, 2}, {&first, 2}, {&second, 3}}),
            "uvuvvnnbbb");
  EXPECT_EQ(counts, Counts{});
  for (Outgoing* out : {&background, &normal, &first}) {
    queue.push(out);
  }
  const std::string order = drain(&queue, {{&background, 3}, {&normal, 3}, {&first, 60}});
  EXPECT_EQ(order.substr(0, 18), "uuuuuuuuuuuuuuubnu");
  EXPECT_EQ(std::count(order.begin(), order.begin() + 60, 'b'), 3) << order;
  EXPECT_EQ(std::count(order.begin(), order.begin() + 60, 'n'), 3) << order;
  queue.push(&normal);
  queue.push(&first);
  queue.drop_if([&](const Outgoing* out) { return out == &first; });
  EXPECT_EQ(counts, (Counts{0, 1, 0}));
  EXPECT_EQ(queue.pop(), &normal);
}

// Rank 1 of a world whose rank 0 is the test: it has buffers for messages 0, 1, ... and reads the
// frames when all is posted.
class OneReader : public testing::Test {
 protected:
  OneReader() : world_(2), peer_(&world_, 1) { peer_.shake_hands(0, 1, 2); }

  void offer(std::uint32_t number, std::size_t bytes) {
    tcp::FrameHeader credit = RawPeer::frame(tcp::FrameType::kCredit, 0, 0, {7, number});
    credit.message_bytes = bytes;
    ASSERT_TRUE(peer_.send(credit));
    world_.turns(5);
  }

  void post(std::uint32_t number, const std::vector<std::byte>& data, Priority priority) {
    world_.send(1, 0, {7, number}, data, number, info_of(priority));
  }

  // Numbers of the messages in the order of their chunks; eager ones too.
  std::string read(std::size_t frames) {
    std::string order;
    while (order.size() < frames) {
      const tcp::FrameHeader header = peer_.receive_header();
      const std::vector<std::byte> payload = peer_.receive(header.payload_bytes);
      if (payload.size() != header.payload_bytes || header.type == 0) {
        ADD_FAILURE() << "the rank has closed";
        break;
      }
      EXPECT_EQ(header.info_reserved, 0) << "the priority travels";
      if (header.payload_bytes > 0) {
        order += static_cast<char>('0' + header.message);
      }
    }
    return order;
  }

  TcpWorld world_;
  RawPeer peer_;
};

TEST_F(OneReader, TheUrgentOvertakesWhatTheSocketHasNotTaken) {
  const std::vector<std::byte> large = pattern(100 * kChunkBytes, 1);
  const std::vector<std::byte> small = pattern(12 * kChunkBytes, 2);
  offer(0, large.size());
  offer(1, small.size());
  post(0, large, Priority::kBackground);
  world_.turns(50);  // the socket is full
  ASSERT_LT(LaneTestAccess::sent(lane_of(&world_, 1, 0), {7, 0}, large.size()), large.size() / 2);
  post(1, small, Priority::kUrgent);
  const std::size_t background = large.size() / kBackgroundChunk;
  const std::string order = read(background + 12);
  const std::size_t begin = order.find('1');
  EXPECT_EQ(order.substr(begin, 12), std::string(12, '1')) << order;
  EXPECT_EQ(static_cast<std::size_t>(std::count(order.begin(), order.end(), '0')), background);
}

TEST_F(OneReader, OfEqualOnesEachHasAChunkInTurn) {
  const std::vector<std::byte> large = pattern(60 * kChunkBytes, 1);
  offer(0, large.size());
  offer(1, large.size());
  post(0, large, Priority::kBackground);
  world_.turns(50);
  post(1, large, Priority::kBackground);
  const std::string order = read(2 * large.size() / kBackgroundChunk);
  const std::size_t begin = order.find('1');
  ASSERT_LT(begin, order.size() / 4) << order;
  EXPECT_EQ(order.substr(begin, 10), "1010101010") << order;
}

TEST_F(OneReader, TheBackgroundGetsOneChunkInSixteen) {
  const std::vector<std::byte> large = pattern(100 * kChunkBytes, 1);
  offer(0, large.size());
  offer(1, large.size());
  post(0, large, Priority::kBackground);
  world_.turns(50);
  post(1, large, Priority::kUrgent);
  const std::string order = read(large.size() / kBackgroundChunk + 100);
  const std::size_t begin = order.find('1');
  const std::string both = order.substr(begin, order.rfind('1') - begin);
  EXPECT_EQ(both.find(std::string(BulkQueue::kPassedMax + 1, '1')), std::string::npos) << order;
  EXPECT_EQ(std::count(both.begin(), both.end(), '0'), 6) << order;
}

// What is small goes first whatever its priority, as ever.
TEST_F(OneReader, EagerMessagesGoBeforeChunksOfAnyPriority) {
  const std::vector<std::byte> large = pattern(60 * kChunkBytes, 1);
  offer(0, large.size());
  post(0, large, Priority::kUrgent);
  world_.turns(50);
  const std::size_t before =
      LaneTestAccess::sent(lane_of(&world_, 1, 0), {7, 0}, large.size()) / kChunkBytes;
  const std::vector<std::byte> small = pattern(1000, 3);
  post(1, small, Priority::kBackground);
  EXPECT_EQ(read(61).find('1'), before);
}

// Two peers, with buffers for one message of rank 0 each; `yield_ms` as given.
class TwoPeers {
 public:
  static constexpr std::size_t kBytes = 64 * kChunkBytes;

  TwoPeers(std::int64_t yield_ms, Priority first, Priority second)
      : world(3, [&](TcpOptions* options) { options->yield_ms = yield_ms; }) {
    for (const int peer : {1, 2}) {
      world.exchange(0, peer);
      const auto at = static_cast<std::size_t>(peer) - 1;
      out[at] = pattern(kBytes, at);
      in[at].resize(kBytes);
      world.recv(peer, 0, {9, 0}, in[at], 1);
    }
    world.turns(20);  // rank 0 has their credits
    world.send(0, 1, {9, 0}, out[0], 11, info_of(first));
    world.send(0, 2, {9, 0}, out[1], 12, info_of(second));
  }

  std::size_t sent(int peer) {
    return LaneTestAccess::sent(lane_of(&world, 0, peer), {9, 0}, kBytes);
  }

  bool run_until_sent(int peer) {
    return world.run_until([&] { return sent(peer) == kBytes; }, "chunks");
  }

  void expect_both_whole() {
    ASSERT_TRUE(world.wait_for(1, 1) && world.wait_for(2, 1));
    EXPECT_EQ(in, out);
  }

  TcpWorld world;
  std::array<std::vector<std::byte>, 2> out;
  std::array<std::vector<std::byte>, 2> in;
};

TEST(TcpTwoPeers, EqualOnesProgressTogether) {
  for (const Priority priority : {Priority::kUrgent, Priority::kNormal, Priority::kBackground}) {
    TwoPeers peers(kForeverMs, priority, priority);
    ASSERT_TRUE(peers.world.run_until(
        [&] { return std::max(peers.sent(1), peers.sent(2)) >= TwoPeers::kBytes / 2; }, "half"));
    // One pump moves 1 MiB, and sockets take what they like.
    EXPECT_GE(std::min(peers.sent(1), peers.sent(2)), TwoPeers::kBytes / 8);
    peers.expect_both_whole();
  }
}

TEST(TcpTwoPeers, TheBackgroundWaitsForAnotherPeersMessage) {
  TwoPeers peers(kForeverMs, Priority::kBackground, Priority::kNormal);
  const std::size_t before = peers.sent(1);
  EXPECT_LE(before, 2 * kChunkBytes);  // what its post wrote
  ASSERT_TRUE(peers.run_until_sent(2));
  // One may have been in the writer; and those of the last pass, when the other was done.
  EXPECT_LE(peers.sent(1), before + 8 * kChunkBytes);
  peers.expect_both_whole();
}

// The urgent message's peer reads nothing: the other one's goes on all the same, and once it does,
// not a chunk at a time.
TEST(TcpTwoPeers, WhoStandsStillHoldsNobodyUp) {
  TcpWorld world(3, [](TcpOptions* options) { options->yield_ms = 100; });
  world.exchange(0, 1);
  RawPeer still(&world, 0);
  still.shake_hands(2, 0, 3);
  const std::vector<std::byte> out = pattern(std::size_t{64} << 20, 1);
  tcp::FrameHeader credit = RawPeer::frame(tcp::FrameType::kCredit, 2, 0, {9, 0});
  credit.message_bytes = out.size();
  ASSERT_TRUE(still.send(credit));
  std::vector<std::byte> in(16 * kChunkBytes);
  world.recv(1, 0, {9, 0}, in, 1);
  world.turns(20);
  world.send(0, 2, {9, 0}, out, 2, info_of(Priority::kUrgent));
  world.send(0, 1, {9, 0}, std::span(out).first(in.size()), 3, info_of(Priority::kBackground));
  const auto sent = [&] { return LaneTestAccess::sent(lane_of(&world, 0, 1), {9, 0}, in.size()); };
  const std::size_t at_once = sent();
  ASSERT_TRUE(world.run_until([&] { return sent() > at_once; }, "the first chunk that waited"));
  world.turns(10);
  EXPECT_GE(sent(), at_once + 8 * kBackgroundChunk);
  ASSERT_TRUE(world.wait_for(1, 1));
  EXPECT_LT(LaneTestAccess::sent(lane_of(&world, 0, 2), {9, 0}, out.size()), out.size());
  EXPECT_TRUE(std::equal(in.begin(), in.end(), out.begin()));
}

// Flows that are reset in the middle of both messages: the order holds, and so do the bytes.
TEST(TcpPriorityFailover, LostFlowsKeepTheOrder) {
  constexpr std::size_t kLarge = std::size_t{48} << 20;
  constexpr std::size_t kSmall = std::size_t{4} << 20;
  for (const bool lose : {false, true}) {
    SCOPED_TRACE(lose);
    TcpWorld world(2, [](TcpOptions* options) { options->flows = 4; });
    world.exchange(0, 1);
    const std::vector<std::byte> large = pattern(kLarge, 1);
    const std::vector<std::byte> small = pattern(kSmall, 2);
    std::vector<std::byte> in_large(kLarge);
    std::vector<std::byte> in_small(kSmall);
    tcp::Lane& lane = lane_of(&world, 0, 1);
    std::vector<std::byte> first(kSmall);
    world.recv(1, 0, {1, 0}, first, 1);
    world.send(0, 1, {1, 0}, small, 2);
    ASSERT_TRUE(world.wait_for(1, 1));
    ASSERT_TRUE(world.run_until([&] { return lane.flow_count() == 4; }, "flows"));
    world.exchange(0, 1);
    world.exchange(0, 1);
    ASSERT_TRUE(world.run_until([&] { return LaneTestAccess::settled(lane); }, "acks"));

    world.recv(1, 0, {2, 0}, in_large, 3);
    world.recv(1, 0, {3, 0}, in_small, 4);
    world.turns(20);
    world.send(0, 1, {2, 0}, large, 5, info_of(Priority::kBackground));
    world.turns(3);
    const std::size_t before = LaneTestAccess::sent(lane, {2, 0}, kLarge);
    ASSERT_LT(before, kLarge / 4);
    world.send(0, 1, {3, 0}, small, 6, info_of(Priority::kUrgent));
    ASSERT_TRUE(world.run_until(
        [&] { return LaneTestAccess::sent(lane, {3, 0}, kSmall) > kSmall / 4; }, "a part"));
    if (lose) {
      sockaddr nowhere{};
      nowhere.sa_family = AF_UNSPEC;
      ASSERT_EQ(::connect(LaneTestAccess::socket(lane, 1), &nowhere, sizeof(nowhere)), 0);
    }
    ASSERT_TRUE(world.wait_for(1, 4));
    EXPECT_LT(LaneTestAccess::sent(lane, {2, 0}, kLarge), kLarge);
    EXPECT_FALSE(world.completed(1, 3));
    EXPECT_EQ(in_small, small);
    ASSERT_TRUE(world.wait_for(1, 3));
    EXPECT_EQ(in_large, large);
    ASSERT_TRUE(world.wait_for(0, 5) && world.wait_for(0, 6));
  }
}

}  // namespace
}  // namespace isthmus::tcp_test
