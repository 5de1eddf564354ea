// Goal: messages of every size and posting order arrive whole between TCP ranks, within the quotas,
// whatever is cancelled, refused or closed meanwhile. Method: several transports in one process,
// driven by one thread; frames of a peer that breaks the rules are covered by tcp_stranger_test.
#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <random>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/transport/tcp_world.h"
#include "transport/tcp/wire.h"

namespace isthmus::tcp_test {
namespace {

constexpr std::array<std::size_t, 10> kSizes = {
    0, 1, 8, 8191, 8192, 8193, 262144, 262145, (std::size_t{1} << 20) + 3, std::size_t{9} << 20};

OperationInfo info_of(std::uint32_t signature) {
  OperationInfo info;
  info.signature = signature;
  info.kind = 3;
  info.dtype = 2;
  info.red_op = 1;
  info.root = 77;
  info.count = std::uint64_t{1} << 40;
  return info;
}

class TcpFlow : public ::testing::TestWithParam<bool> {
 protected:
  static void checksums(TcpOptions* options) { options->checksums = GetParam(); }
};

TEST_P(TcpFlow, ReceiveFirst) {
  TcpWorld world(2, checksums);
  std::uint32_t step = 0;
  for (const std::size_t size : kSizes) {
    SCOPED_TRACE(size);
    ++step;
    const std::vector<std::byte> out = pattern(size, step);
    std::vector<std::byte> in(size);
    world.recv(1, 0, {step, 1}, in, step, info_of(1));
    world.turns(step % 3 == 0 ? 0 : 20);
    world.send(0, 1, {step, 1}, out, step, info_of(2));
    ASSERT_TRUE(world.wait_for(1, step));
    const Completion done = world.outcome(1, step);
    EXPECT_FALSE(done.failed);
    EXPECT_TRUE(done.is_recv);
    EXPECT_EQ(done.bytes, size);
    EXPECT_EQ(done.peer_info, info_of(2));
    EXPECT_EQ(in, out);
  }
}

TEST_P(TcpFlow, SendFirst) {
  TcpWorld world(2, checksums);
  std::uint32_t step = 0;
  for (const std::size_t size : kSizes) {
    SCOPED_TRACE(size);
    ++step;
    const std::vector<std::byte> out = pattern(size, step);
    std::vector<std::byte> in(size);
    const Endpoint::Post post = world.send(1, 0, {step, 1}, out, step, info_of(2));
    world.turns(step % 3 == 0 ? 0 : 50);
    world.recv(0, 1, {step, 1}, in, step, info_of(1));
    ASSERT_TRUE(world.wait_for(0, step));
    EXPECT_EQ(world.outcome(0, step).peer_info, info_of(2));
    EXPECT_EQ(in, out);
    if (post == Endpoint::Post::kPosted) {
      ASSERT_TRUE(world.wait_for(1, step));
      EXPECT_FALSE(world.outcome(1, step).failed);
    }
  }
}

TEST_P(TcpFlow, ManyTagsInRandomOrder) {
  const std::uint64_t seed = 20261129;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  TcpWorld world(2, checksums);
  constexpr std::uint32_t kMessages = 2000;
  std::vector<std::vector<std::byte>> out(kMessages);
  std::vector<std::vector<std::byte>> in(kMessages);
  std::vector<std::uint32_t> order(kMessages);
  std::iota(order.begin(), order.end(), 0U);
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    out[i] = pattern(i % 100 == 0 ? 600'000 : random() % 12'000, i);
    in[i].resize(out[i].size());
  }
  std::vector<std::uint32_t> recv_order = order;
  std::shuffle(order.begin(), order.end(), random);
  std::shuffle(recv_order.begin(), recv_order.end(), random);
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    world.send(0, 1, {order[i] / 7, order[i] % 7}, out[order[i]], order[i]);
    world.recv(1, 0, {recv_order[i] / 7, recv_order[i] % 7}, in[recv_order[i]], recv_order[i]);
    world.turns(static_cast<int>(random() % 2));
  }
  ASSERT_TRUE(world.run_until([&] { return world.events(1).completions.size() == kMessages; },
                              "all receives"));
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(in[i], out[i]) << i;
  }
}

TEST_P(TcpFlow, FourRanksAllToAll) {
  constexpr int kRanks = 4;
  TcpWorld world(kRanks, checksums);
  for (const std::size_t size : {std::size_t{0}, std::size_t{500}, std::size_t{1'000'003}}) {
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in(kRanks * kRanks, std::vector<std::byte>(size));
    for (std::uint64_t i = 0; i < kRanks * kRanks; ++i) {
      out.push_back(pattern(size, i));
    }
    // All at once and with no order between ranks: every pair is connected from both sides.
    for (int a = 0; a < kRanks; ++a) {
      world.events(a).clear();
      for (int b = 0; b < kRanks; ++b) {
        if (a != b) {
          world.send(a, b, {size, 0}, out[static_cast<std::size_t>(a * kRanks + b)], 1);
          world.recv(a, b, {size, 0}, in[static_cast<std::size_t>(b * kRanks + a)], 2);
        }
      }
    }
    ASSERT_TRUE(world.run_until(
        [&] {
          for (int rank = 0; rank < kRanks; ++rank) {
            const std::vector<Completion>& all = world.events(rank).completions;
            if (std::count_if(all.begin(), all.end(),
                              [](const Completion& c) { return c.is_recv; }) != kRanks - 1) {
              return false;
            }
          }
          return true;
        },
        "all to all"));
    for (int a = 0; a < kRanks; ++a) {
      EXPECT_TRUE(world.events(a).dead.empty());
      for (int b = 0; b < kRanks; ++b) {
        const auto i = static_cast<std::size_t>(a * kRanks + b);
        if (a != b) {
          EXPECT_EQ(in[i], out[i]) << a << " to " << b;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, TcpFlow, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& param) {
                           return param.param ? "checked" : "plain";
                         });

TEST(TcpFlowLimits, EagerQuotaFallsBackToAsking) {
  TcpWorld world(2);
  world.exchange(0, 1);
  world.events(0).clear();
  // Twice the quota in small messages, none of them received yet.
  const std::size_t size = 4096;
  const auto messages = static_cast<std::uint32_t>(2 * tcp::kEagerQuota / tcp::eager_cost(size));
  std::vector<std::vector<std::byte>> out;
  std::uint32_t at_once = 0;
  for (std::uint32_t i = 0; i < messages; ++i) {
    out.push_back(pattern(size, i));
    if (world.send(0, 1, {5, i}, out[i], i) == Endpoint::Post::kDone) {
      ++at_once;
    }
    world.turns(1);
  }
  world.turns(200);
  const std::size_t sent = at_once + world.events(0).completions.size();
  EXPECT_LE(sent, tcp::kEagerQuota / tcp::eager_cost(size));
  EXPECT_GE(sent, tcp::kEagerQuota / tcp::eager_cost(size) - 2);
  // A message that was posted last can be received first: nothing stands in its way.
  std::vector<std::byte> in(size);
  for (std::uint32_t i = messages; i-- > 0;) {
    world.recv(1, 0, {5, i}, in, i);
    ASSERT_TRUE(world.wait_for(1, i));
    ASSERT_EQ(in, out[i]) << i;
  }
  // The quota is free again.
  world.exchange(0, 1);
  EXPECT_EQ(world.send(0, 1, {6, 0}, out[0], messages), Endpoint::Post::kDone);
}

TEST(TcpFlowLimits, ReusedTagsAndSelfAreRefused) {
  TcpWorld world(2);
  std::vector<std::byte> in(100);
  world.recv(0, 1, {1, 1}, in, 1);
  const Result<Endpoint::Post> again = world.at(0).endpoint(1).post_recv({1, 1}, {}, in, {});
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, Code::kInvalidArgument);
  const Result<Endpoint::Post> self = world.at(0).endpoint(0).post_send({1, 1}, {}, in, {});
  if (self.ok()) {
    ASSERT_TRUE(world.run_until([&] { return !world.events(0).completions.empty(); }, "failure"));
    EXPECT_TRUE(world.events(0).completions[0].failed);
  }
}

// A big message goes on while small ones pass it, and two big ones share the wire.
TEST(TcpFlowLimits, FairBetweenMessages) {
  TcpWorld world(2);
  world.exchange(0, 1);
  const std::size_t big = std::size_t{64} << 20;
  const std::vector<std::byte> out = pattern(big, 1);
  std::vector<std::byte> first(big);
  std::vector<std::byte> second(big / 8);
  std::vector<std::byte> small(16);
  world.recv(1, 0, {1, 0}, first, 1);
  world.recv(1, 0, {1, 1}, second, 2);
  world.recv(1, 0, {1, 2}, small, 3);
  world.turns(5);
  world.send(0, 1, {1, 0}, out, 1);
  world.send(0, 1, {1, 1}, std::span(out).first(big / 8), 2);
  world.send(0, 1, {1, 2}, std::span(out).first(16), 3);
  ASSERT_TRUE(world.wait_for(1, 3));
  EXPECT_FALSE(world.completed(1, 1));
  ASSERT_TRUE(world.wait_for(1, 2));
  EXPECT_FALSE(world.completed(1, 1));
  ASSERT_TRUE(world.wait_for(1, 1));
  EXPECT_EQ(first, out);
}

struct Sizes {
  std::size_t sent;
  std::size_t expected;
};

TEST(TcpMismatch, BothSidesHear) {
  TcpWorld world(2);
  std::uint32_t step = 0;
  for (const Sizes sizes : {Sizes{10, 20}, Sizes{0, 1}, Sizes{100'000, 100}, Sizes{100, 100'000},
                            Sizes{100'000, 100'001}, Sizes{8193, 8192}}) {
    for (const int order : {0, 1, 2}) {
      SCOPED_TRACE(::testing::Message()
                   << sizes.sent << " sent, " << sizes.expected << " expected, order " << order);
      ++step;
      const std::vector<std::byte> out(sizes.sent);
      std::vector<std::byte> in(sizes.expected, std::byte{9});
      const Tag tag{make_operation(3, step, false), 0};
      world.events(0).clear();
      if (order == 0) {
        world.recv(1, 0, tag, in, step, info_of(1));
        world.turns(50);
      }
      Endpoint::Post post = world.send(0, 1, tag, out, step, info_of(2));
      world.turns(order == 1 ? 50 : 0);
      if (order != 0) {
        world.recv(1, 0, tag, in, step, info_of(1));
      }
      ASSERT_TRUE(world.wait_for(1, step));
      const Completion received = world.outcome(1, step);
      EXPECT_TRUE(received.failed);
      EXPECT_EQ(received.code, Code::kMismatch);
      EXPECT_EQ(received.peer_info, info_of(2));
      EXPECT_EQ(received.peer_bytes, sizes.sent);
      world.exchange(0, 1);
      world.turns(10);
      // The sender hears by its completion, or by a notice when its send had ended before.
      const bool told = world.completed(0, step);
      const Completion sent = world.outcome(0, step);
      if (told && sent.failed) {
        EXPECT_EQ(sent.code, Code::kMismatch);
        EXPECT_EQ(sent.peer_bytes, sizes.expected);
      } else {
        EXPECT_LE(sizes.sent, tcp::kEagerBytes);
        ASSERT_EQ(world.events(0).notices.size(), 1U);
        EXPECT_EQ(world.events(0).notices[0].kind, Notice::Kind::kRefused);
        EXPECT_EQ(world.events(0).notices[0].group, 3U);
        EXPECT_EQ(world.events(0).notices[0].sequence, step);
      }
      if (post == Endpoint::Post::kPosted) {
        EXPECT_TRUE(told);
      }
      EXPECT_TRUE(std::all_of(in.begin(), in.end(), [](std::byte b) { return b == std::byte{9}; }));
    }
  }
}

TEST(TcpCancel, InEveryState) {
  const std::uint64_t seed = 7;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  TcpWorld world(2);
  const std::size_t big = std::size_t{3} << 20;
  for (std::uint64_t round = 0; round < 120; ++round) {
    SCOPED_TRACE(round);
    const std::size_t size = round % 3 == 0 ? 3000 : (round % 3 == 1 ? 40'000 : big);
    std::vector<std::byte> out = pattern(size, round);
    std::vector<std::byte> in(size, std::byte{1});
    const std::uint64_t operation = 1000 + round;
    const auto step = static_cast<std::uint32_t>(round);
    const bool recv_first = random() % 2 == 0;
    const bool recv_at_all = random() % 4 != 0;
    if (recv_first && recv_at_all) {
      world.recv(1, 0, {operation, 0}, in, step);
    }
    world.turns(static_cast<int>(random() % 4));
    world.send(0, 1, {operation, 0}, out, step);
    world.turns(static_cast<int>(random() % 4));
    if (!recv_first && recv_at_all) {
      world.recv(1, 0, {operation, 0}, in, step);
    }
    world.turns(static_cast<int>(random() % 12));
    const bool sender = random() % 2 == 0;
    const bool done_before = world.completed(sender ? 0 : 1, step);
    world.at(sender ? 0 : 1).endpoint(sender ? 1 : 0).cancel(operation);
    if (sender) {
      std::fill(out.begin(), out.end(), std::byte{0xbb});
      world.turns(3);
      world.at(1).endpoint(0).cancel(operation);
    }
    const std::vector<std::byte> before = in;
    world.exchange(0, 1);
    world.turns(20);
    EXPECT_EQ(in, before) << "a cancelled buffer was written";
    EXPECT_EQ(std::count(in.begin(), in.end(), std::byte{0xbb}) > static_cast<long>(size / 2),
              false);
    if (!done_before) {
      EXPECT_FALSE(world.completed(sender ? 0 : 1, step));
    }
    world.at(0).endpoint(1).cancel(operation);
  }
}

TEST(TcpCancel, CancelledRequestEndsTheSend) {
  TcpWorld world(2);
  const std::vector<std::byte> out(100'000);
  world.exchange(0, 1);
  world.at(1).endpoint(0).cancel(9);
  world.send(0, 1, {9, 0}, out, 1);
  ASSERT_TRUE(world.wait_for(0, 1));
  EXPECT_FALSE(world.outcome(0, 1).failed);
  // The same when the request waits already.
  world.send(0, 1, {10, 0}, out, 2);
  world.exchange(0, 1);
  world.at(1).endpoint(0).cancel(10);
  ASSERT_TRUE(world.wait_for(0, 2));
  EXPECT_FALSE(world.outcome(0, 2).failed);
}

// `bytes` of address space, all of it the same `kAliasBytes` of memory again and again.
class AliasedMemory {
 public:
  static constexpr std::size_t kAliasBytes = std::size_t{32} << 20;

  explicit AliasedMemory(std::size_t bytes) : bytes_(bytes) {
    const int fd = ::memfd_create("tcp_flow_test", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(fd, kAliasBytes), 0);
    base_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::size_t at = 0; at < bytes; at += kAliasBytes) {
      const void* mapped = ::mmap(base_ + at, std::min(kAliasBytes, bytes - at),
                                  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
      EXPECT_EQ(mapped, base_ + at);
    }
    ::close(fd);
  }

  ~AliasedMemory() { ::munmap(base_, bytes_); }

  AliasedMemory(const AliasedMemory&) = delete;
  AliasedMemory& operator=(const AliasedMemory&) = delete;

  std::span<std::byte> span() { return {base_, bytes_}; }

 private:
  std::size_t bytes_;
  std::byte* base_ = nullptr;
};

// What breaks counts of 32 bits, without 4 GiB of memory: every 32 MiB of the message are equal.
TEST(TcpLarge, BeyondTwoGigabytes) {
  const std::size_t size = (std::size_t{2} << 30) + 5;
  TcpWorld world(2);
  AliasedMemory out(size);
  AliasedMemory in(size);
  const std::vector<std::byte> content = pattern(AliasedMemory::kAliasBytes, 5);
  std::copy(content.begin(), content.end(), out.span().begin());
  world.recv(1, 0, {1, 0}, in.span(), 1);
  world.send(0, 1, {1, 0}, out.span(), 2);
  ASSERT_TRUE(world.wait_for(1, 1));
  ASSERT_TRUE(world.wait_for(0, 2));
  EXPECT_EQ(world.outcome(1, 1).bytes, size);
  EXPECT_TRUE(std::equal(content.begin(), content.end(), in.span().begin()));
}

}  // namespace
}  // namespace isthmus::tcp_test
