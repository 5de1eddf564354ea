// Goal: a lane through shared memory trusts nothing that it reads, holds its bounds, and moves any
// mix of messages between two threads. Method: two lanes over the same memory; broken frames
// written by hand, then random bytes; then a thread for each side with seeded traffic (tsan looks
// on).
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/hash.h"
#include "tests/transport/shm_lane_pair.h"

namespace isthmus::shm_test {
namespace {

using shm::FrameBody;
using shm::FrameType;

// Writes a frame into the next cell of side 0 as a broken writer would: `index` counts its frames.
void forge(LanePair* pair, std::uint64_t index, int type, std::uint8_t small, const Tag& tag,
           const FrameBody& body) {
  LaneCell& cell = pair->piece(0).cells[index % kLaneCells];
  cell.operation = tag.operation;
  std::memcpy(cell.payload.data(), &body, sizeof body);
  cell.word.store(
      shm::frame_word(static_cast<FrameType>(type), small, shm::lap_stamp(index), tag.message));
}

struct Forgery {
  const char* name;
  std::function<void(LanePair*)> write;
};

std::vector<Forgery> forgeries() {
  const auto one = [](int type, std::uint8_t small, const FrameBody& body) {
    return [type, small, body](LanePair* pair) { forge(pair, 0, type, small, {5, 0}, body); };
  };
  const auto body = [](std::uint64_t message_bytes, std::uint64_t offset, std::uint32_t at,
                       std::uint32_t bytes) {
    return FrameBody{.info = {},
                     .message_bytes = message_bytes,
                     .offset = offset,
                     .data_at = at,
                     .data_bytes = bytes};
  };
  const std::uint32_t end = LaneGeometry::of(2).data_bytes;
  return {
      {"stamp of another lap",
       [](LanePair* pair) {
         pair->piece(0).cells[0].word.store(shm::frame_word(FrameType::kEager, 0, 9, 0));
       }},
      {"no stamp", [](LanePair* pair) { pair->piece(0).cells[0].word.store(77); }},
      {"type 0", one(0, 0, {})},
      {"type 9", one(9, 0, {})},
      {"type 255", one(255, 0, {})},
      {"inline, too long", one(1, 49, {})},
      {"inline, no info before", one(1, 8, {})},
      {"data beyond the end", one(2, 0, body(64, 0, end - 63, 64))},
      {"data far beyond the end", one(2, 0, body(64, 0, 0xffffffc0U, 64))},
      {"data of all bytes", one(2, 0, body(64, 0, 64, 0xffffffffU))},
      {"eager, too long", one(2, 0, body(8193, 0, 0, 8193))},
      {"message too long", one(3, 0, body(std::uint64_t{1} << 60, 0, 0, 0))},
      {"credit too long", one(4, 0, body(~std::uint64_t{0}, 0, 0, 0))},
      {"chunk at a wrong offset", one(5, 0, body(100'000, 4096, 0, 4096))},
      {"chunk of another size", one(5, 0, body(99'999, 0, 0, 4096))},
      {"chunk that overflows", one(5, 0, body(100'000, 0, 0, 200'000))},
      {"notice, too short", one(7, 0, body(0, 0, 0, 3))},
      {"notice, unknown kind", one(7, 0, body(0, 0, 0, 20))},
      {"frames read that were never written",
       [](LanePair* pair) { pair->piece(0).header->consumed.store(1'000'000); }},
  };
}

TEST(ShmLane, BrokenFramesEndTheLaneWithASentence) {
  for (const Forgery& forgery : forgeries()) {
    SCOPED_TRACE(forgery.name);
    LanePair pair;
    std::vector<std::byte> in(100'000, std::byte{0x5a});
    ASSERT_TRUE(pair.lane(1).post_recv({5, 0}, {}, in, Token{}).ok());
    forgery.write(&pair);
    // More than the ring holds, so that this side looks at the peer's counter.
    std::vector<std::byte> out(8000);
    for (std::uint32_t i = 0; i < 200 && !pair.lane(1).over(); ++i) {
      (void)pair.lane(1).post_send({6, i}, {}, out, Token{});
      pair.lane(1).pump();
    }
    ASSERT_TRUE(pair.lane(1).over());
    const Result<Endpoint::Post> late = pair.lane(1).post_send({7, 0}, {}, out, Token{});
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, Code::kProtocol);
    EXPECT_EQ(late.error().culprit, kRankOf[0]);
    EXPECT_NE(late.error().message.find("rank 3"), std::string::npos) << late.error().message;
    EXPECT_EQ(pair.shared(1).dead, std::vector<int>{kRankOf[0]});
    bool failed = false;
    for (const Completion& completion : pair.completions(1)) {
      failed =
          failed || (completion.is_recv && completion.failed && completion.code == Code::kProtocol);
    }
    EXPECT_TRUE(failed) << "the receive must not hang";
  }
}

// Frames with every field at random, and cells of noise: an end or nothing, never a crash.
TEST(ShmLane, RandomFramesAreTakenOrRefused) {
  constexpr std::uint64_t kSeed = 4;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  int ended = 0;
  for (int round = 0; round < 3000; ++round) {
    LanePair pair(64);
    std::deque<std::vector<std::byte>> buffers;
    for (std::uint32_t i = 0; i < 4; ++i) {
      buffers.emplace_back(i * 5000);
      (void)pair.lane(1).post_recv({1, i}, {}, buffers.back(), Token{});
      (void)pair.lane(1).post_send({2, i}, {}, buffers.back(), Token{});
    }
    for (std::uint64_t index = 0; index < 60 && !pair.lane(1).over(); ++index) {
      FrameBody body;
      body.message_bytes = random() % 5 * 5000;
      body.offset = random() % 3 * 4096;
      body.data_at = static_cast<std::uint32_t>(random() % pair.geometry().data_bytes);
      body.data_bytes = static_cast<std::uint32_t>(
          random() % (pair.geometry().data_bytes - body.data_at + (random() % 50 == 0 ? 100 : 1)));
      body.info.count = random();
      forge(&pair, index, static_cast<int>(random() % 9), static_cast<std::uint8_t>(random() % 50),
            {1 + random() % 2, static_cast<std::uint32_t>(random() % 5)}, body);
      if (random() % 40 == 0) {
        pair.piece(0).cells[index % kLaneCells].word.store(random());
      }
      pair.lane(1).pump();
      if (random() % 10 == 0) {
        pair.lane(1).cancel(1 + random() % 2);
      }
    }
    ended += pair.lane(1).over() ? 1 : 0;
  }
  EXPECT_GT(ended, 1000);
}

TEST(ShmLane, UnexpectedMessagesStayWithinTheQuota) {
  LanePair pair;
  std::vector<std::byte> out(8000);
  std::uint32_t done = 0;
  for (std::uint32_t i = 0; i < 500; ++i) {
    const Result<Endpoint::Post> post = pair.lane(0).post_send({1, i}, {}, out, Token{});
    ASSERT_TRUE(post.ok());
    done += *post == Endpoint::Post::kDone ? 1U : 0U;
    pair.lane(1).pump();
    pair.lane(0).pump();
  }
  done += static_cast<std::uint32_t>(pair.completions(0).size());
  EXPECT_EQ(done, shm::kEagerQuota / eager_cost(out.size()));
  EXPECT_FALSE(pair.lane(1).over());
  // The last one that was sent is received first: what waits before it holds nothing up.
  std::vector<std::byte> in(8000);
  for (std::uint32_t i = 500; i-- > 0;) {
    ASSERT_TRUE(pair.lane(1).post_recv({1, i}, {}, in, Token{}).ok());
    for (int turn = 0; turn < 4; ++turn) {
      pair.lane(0).pump();
      pair.lane(1).pump();
    }
    const std::vector<Completion> got = pair.completions(1);
    ASSERT_EQ(got.size(), 1U) << i;
    EXPECT_FALSE(got[0].failed);
  }
}

TEST(ShmLane, DataOfAProcessIsBoundedWhateverTheRanksOfItsNode) {
  for (const std::size_t ranks : {1U, 2U, 8U, 16U, 17U, 64U, 128U}) {
    const LaneGeometry geometry = LaneGeometry::of(ranks);
    EXPECT_LE(geometry.data_bytes * ranks, kLaneDataTotal) << ranks;
    EXPECT_GE(geometry.chunk_bytes, kEagerBytes) << ranks;
    EXPECT_EQ(geometry.stride % 4096, 0U);
  }
  EXPECT_EQ(LaneGeometry::of(2).chunk_bytes, 64U << 10);
}

TEST(ShmLane, AFileOfOtherRanksIsRefused) {
  const std::vector<int> locals = {2, 3, 7};
  Result<Fd> file = LaneMemory::reserve(3, 8, false);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const Result<LaneMemory> own = LaneMemory::create(3, locals, std::move(file).value());
  ASSERT_TRUE(own.ok()) << own.error().message;
  EXPECT_TRUE(LaneMemory::attach(own->fd().duplicate().value(), 3, 7, locals).ok());
  const std::vector<std::vector<int>> wrong = {{2, 3}, {2, 3, 7, 8}};
  for (const std::vector<int>& other : wrong) {
    EXPECT_FALSE(LaneMemory::attach(own->fd().duplicate().value(), 3, 2, other).ok());
  }
  const Result<LaneMemory> stranger =
      LaneMemory::attach(own->fd().duplicate().value(), 2, 7, locals);
  ASSERT_FALSE(stranger.ok());
  EXPECT_EQ(stranger.error().culprit, 2);
}

// Both sides compute size and content of a message from its number.
constexpr std::uint64_t kTrafficSeed = 21;
constexpr std::uint32_t kTraffic = 600;

std::size_t traffic_size(std::size_t from, std::uint32_t message) {
  const std::uint64_t hash = mix64(kTrafficSeed * 2 + from + message);
  return hash % 20 == 0 ? hash / 20 % 600'000 : (hash % 4 == 0 ? hash / 20 % 9000 : hash / 20 % 60);
}

std::byte traffic_byte(std::size_t from, std::uint32_t message, std::size_t at) {
  return static_cast<std::byte>(mix64(from + message) + at);
}

// Sends all messages to the other side and receives all of it, up to kWindow at once each way.
void run_side(LanePair* pair, std::size_t side, std::atomic<int>* failures) {
  constexpr std::size_t kWindow = 12;

  struct Post {
    std::uint32_t message = 0;
    bool done = false;
    std::vector<std::byte> buffer;
  };

  std::deque<Post> sends;
  std::deque<Post> receives;
  std::uint32_t sent = 0;
  std::uint32_t posted = 0;
  const Deadline deadline = Deadline::after_ms(100'000);
  const auto fail = [&](const char* what) {
    std::fprintf(stderr, "side %zu: %s\n", side, what);
    failures->fetch_add(1);
  };
  while ((sent < kTraffic || posted < kTraffic || !sends.empty() || !receives.empty()) &&
         failures->load() == 0) {
    if (posted < kTraffic && receives.size() < kWindow) {
      Post& post = receives.emplace_back();
      post.message = posted++;
      post.buffer.resize(traffic_size(1 - side, post.message));
      (void)pair->lane(side).post_recv({1, post.message}, {}, post.buffer, Token{&post, 0});
    }
    if (sent < kTraffic && sends.size() < kWindow) {
      Post& post = sends.emplace_back();
      post.message = sent++;
      post.buffer.resize(traffic_size(side, post.message));
      for (std::size_t i = 0; i < post.buffer.size(); ++i) {
        post.buffer[i] = traffic_byte(side, post.message, i);
      }
      const Result<Endpoint::Post> answer =
          pair->lane(side).post_send({1, post.message}, {}, post.buffer, Token{&post, 0});
      post.done = answer.ok() && *answer == Endpoint::Post::kDone;
    }
    pair->lane(side).pump();
    for (const Completion& completion : pair->completions(side)) {
      static_cast<Post*>(completion.token.owner)->done = true;
      if (completion.failed) {
        fail("a message failed");
      }
    }
    while (!sends.empty() && sends.front().done) {
      sends.pop_front();
    }
    while (!receives.empty() && receives.front().done) {
      const Post& post = receives.front();
      for (std::size_t i = 0; i < post.buffer.size(); ++i) {
        if (post.buffer[i] != traffic_byte(1 - side, post.message, i)) {
          fail("a message is not what was sent");
          break;
        }
      }
      receives.pop_front();
    }
    if (deadline.passed(monotonic_ns())) {
      fail("watchdog");
    }
  }
}

TEST(ShmLane, TwoThreadsMoveAnyMixOfMessages) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kTrafficSeed));
  for (const std::size_t local_ranks : {std::size_t{2}, std::size_t{64}}) {
    LanePair pair(local_ranks);
    std::atomic<int> failures{0};
    std::thread other([&] { run_side(&pair, 1, &failures); });
    run_side(&pair, 0, &failures);
    other.join();
    EXPECT_EQ(failures.load(), 0);
  }
}

}  // namespace
}  // namespace isthmus::shm_test
