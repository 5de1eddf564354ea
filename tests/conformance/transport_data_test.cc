// Goal: every Transport moves messages as endpoint.h says: sizes, orders, tags, directions, infos,
// mismatches. Method: one suite over all factories; all ranks polled in turn by one thread.
#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <numeric>
#include <random>

#include <poll.h>

#include "tests/conformance/factories.h"
#include "tests/conformance/harness.h"

namespace isthmus::conformance {
namespace {

constexpr std::array<std::size_t, 12> kSizes = {
    0, 1, 47, 48, 64, 4096, 8191, 8192, 8193, 65536, (1U << 20) + 3, 5U << 20};

class TransportData : public ::testing::TestWithParam<Factory> {
 protected:
  void start(int ranks, std::uint64_t seed) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    random_.seed(seed);
    harness_ = std::make_unique<Harness>(GetParam(), ranks, seed);
  }

  // A send that was over when its message was refused: rank 0's transport says so by a notice.
  void expect_word_of_refusal(std::uint64_t operation, bool send_failed);

  std::mt19937_64 random_;
  std::unique_ptr<Harness> harness_;
};

OperationInfo info_of(std::uint32_t salt) {
  OperationInfo info;
  info.signature = 0x12345678U ^ salt;
  info.kind = static_cast<std::uint8_t>(salt % 7);
  info.dtype = static_cast<std::uint8_t>(salt % 5);
  info.red_op = 3;
  info.root = salt * 3;
  info.count = 0x1'0000'0000ULL + salt;
  return info;
}

void TransportData::expect_word_of_refusal(std::uint64_t operation, bool send_failed) {
  std::vector<Notice>& notices = harness_->notices(0);
  if (!send_failed) {
    ASSERT_TRUE(harness_->run_until([&] { return !notices.empty(); }, "word of the refusal"));
    EXPECT_EQ(notices[0].kind, Notice::Kind::kRefused);
    EXPECT_EQ(notices[0].from, 1);
    EXPECT_EQ(notices[0].code, Code::kMismatch);
    EXPECT_EQ(notices[0].group, static_cast<std::uint32_t>(operation >> 32));
    EXPECT_EQ(notices[0].sequence, static_cast<std::uint32_t>(operation));
    EXPECT_TRUE(notices[0].peer_info == info_of(5));
    EXPECT_FALSE(notices[0].text.empty());
    notices.erase(notices.begin());
  }
  EXPECT_TRUE(notices.empty());
}

TEST_P(TransportData, ReceiveBeforeSend) {
  start(2, 11);
  for (const std::size_t size : kSizes) {
    SCOPED_TRACE(size);
    const std::uint64_t operation = harness_->fresh_operation();
    Buffer out(size);
    Buffer in(size);
    out.fill(operation);
    const Operation& recv = harness_->recv(1, 0, {operation, 5}, in.span(), info_of(1));
    harness_->turns(3);
    EXPECT_FALSE(recv.done);
    const Operation& send = harness_->send(0, 1, {operation, 5}, out.span(), info_of(2));
    ASSERT_TRUE(harness_->finish({&recv, &send}));
    EXPECT_TRUE(recv.succeeded() && send.succeeded());
    EXPECT_TRUE(in.holds(operation));
    EXPECT_TRUE(in.guards_intact());
    EXPECT_TRUE(recv.at_once || recv.peer_info == info_of(2));
  }
}

TEST_P(TransportData, SendBeforeReceive) {
  start(2, 12);
  for (const std::size_t size : kSizes) {
    SCOPED_TRACE(size);
    const std::uint64_t operation = harness_->fresh_operation();
    Buffer out(size);
    Buffer in(size);
    out.fill(operation);
    const Operation& send = harness_->send(0, 1, {operation, 0}, out.span(), info_of(3));
    harness_->turns(50);
    const Operation& recv = harness_->recv(1, 0, {operation, 0}, in.span(), info_of(4));
    ASSERT_TRUE(harness_->finish({&recv, &send}));
    EXPECT_TRUE(recv.succeeded() && send.succeeded());
    EXPECT_TRUE(in.holds(operation));
    EXPECT_TRUE(in.guards_intact());
    EXPECT_TRUE(recv.at_once || recv.peer_info == info_of(3));
  }
}

TEST_P(TransportData, SentBufferIsFreeAfterCompletion) {
  start(2, 13);
  for (const std::size_t size : {std::size_t{40}, std::size_t{5000}, std::size_t{300000}}) {
    SCOPED_TRACE(size);
    const std::uint64_t operation = harness_->fresh_operation();
    Buffer out(size);
    Buffer in(size);
    out.fill(operation);
    const Operation& send = harness_->send(0, 1, {operation, 0}, out.span());
    harness_->turns(30);
    if (send.done) {
      out.clear(std::byte{0});
    }
    const Operation& recv = harness_->recv(1, 0, {operation, 0}, in.span());
    ASSERT_TRUE(harness_->finish({&recv, &send}));
    EXPECT_TRUE(in.holds(operation));
  }
}

// A message of any size is offered from its arrival, or its announcement, to its receive.
TEST_P(TransportData, OffersAMessageUntilItIsReceived) {
  start(2, 15);
  for (const std::size_t size : {std::size_t{0}, std::size_t{40}, std::size_t{300000}}) {
    SCOPED_TRACE(size);
    const Tag tag{harness_->fresh_operation(), 3};
    const Tag other{tag.operation, 4};
    Buffer out(size);
    Buffer in(size);
    out.fill(7);
    EXPECT_FALSE(harness_->rank(1).endpoint(0).offers(tag));
    const Operation& send = harness_->send(0, 1, tag, out.span());
    ASSERT_TRUE(harness_->run_until([&] { return harness_->rank(1).endpoint(0).offers(tag); },
                                    "the offer"));
    EXPECT_FALSE(harness_->rank(1).endpoint(0).offers(other));
    const Operation& recv = harness_->recv(1, 0, tag, in.span());
    ASSERT_TRUE(harness_->finish({&recv, &send}));
    EXPECT_TRUE(in.holds(7));
    EXPECT_FALSE(harness_->rank(1).endpoint(0).offers(tag));
  }
}

TEST_P(TransportData, ThousandTagsInRandomOrder) {
  start(2, 14);
  constexpr std::uint32_t kMessages = 1000;
  std::vector<std::uint32_t> send_order(kMessages);
  std::iota(send_order.begin(), send_order.end(), 0U);
  std::vector<std::uint32_t> recv_order = send_order;
  std::shuffle(send_order.begin(), send_order.end(), random_);
  std::shuffle(recv_order.begin(), recv_order.end(), random_);
  std::deque<Buffer> out;
  std::deque<Buffer> in;
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    const std::size_t size = i % 50 == 0 ? 20000 + i : random_() % 300;
    out.emplace_back(size).fill(i);
    in.emplace_back(size);
  }
  const std::uint64_t base = make_operation(3, 100, true);
  // Tags differ in the operation, the message, or both.
  const auto tag = [&](std::uint32_t i) { return Tag{base + i % 10, i / 10}; };
  std::vector<const Operation*> receives(kMessages);
  std::size_t sent = 0;
  std::size_t received = 0;
  while (sent < kMessages || received < kMessages) {
    if (sent < kMessages && (received == kMessages || random_() % 2 == 0)) {
      const std::uint32_t i = send_order[sent++];
      harness_->send(0, 1, tag(i), out[i].span(), info_of(i));
    } else {
      const std::uint32_t i = recv_order[received++];
      receives[i] = &harness_->recv(1, 0, tag(i), in[i].span());
    }
    if (random_() % 8 == 0) {
      harness_->turn();
    }
  }
  ASSERT_TRUE(harness_->finish_all());
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(receives[i]->succeeded()) << i;
    ASSERT_TRUE(in[i].holds(i) && in[i].guards_intact()) << i;
    ASSERT_TRUE(receives[i]->at_once || receives[i]->peer_info == info_of(i)) << i;
  }
}

// Nobody receives for a long while: posts may answer busy, nothing may be lost or fail.
TEST_P(TransportData, FloodBeforeTheFirstReceive) {
  start(2, 15);
  constexpr std::uint32_t kMessages = 3000;
  const std::uint64_t operation = harness_->fresh_operation();
  std::vector<Buffer> out(kMessages, Buffer(200));
  std::vector<Buffer> in(kMessages, Buffer(200));
  std::uint32_t received = 0;
  std::uint32_t posted = 0;
  const auto poll_both = [&] {
    for (int rank = 0; rank < 2; ++rank) {
      Events events;
      harness_->rank(rank).poll(&events);
      for (const Completion& completion : events.completions) {
        EXPECT_FALSE(completion.failed);
        received += completion.is_recv ? 1U : 0U;
      }
    }
  };
  // Posts of the test's own: the harness would wait for room, which only the receives make.
  for (; posted < kMessages; ++posted) {
    out[posted].fill(posted);
    Endpoint::Post answer = Endpoint::Post::kBusy;
    for (int tries = 0; tries < 100 && answer == Endpoint::Post::kBusy; ++tries) {
      const Result<Endpoint::Post> post = harness_->rank(0).endpoint(1).post_send(
          {operation, posted}, {}, out[posted].span(), Token{});
      ASSERT_TRUE(post.ok()) << post.error().message;
      answer = *post;
      if (answer == Endpoint::Post::kBusy || posted % 100 == 0) {
        poll_both();
      }
    }
    if (answer == Endpoint::Post::kBusy) {
      break;
    }
  }
  EXPECT_EQ(received, 0U);
  const Deadline deadline = Deadline::after_ms(kWatchdogMs);
  for (std::uint32_t i = 0; i < posted; ++i) {
    Endpoint::Post answer = Endpoint::Post::kBusy;
    while (answer == Endpoint::Post::kBusy) {
      const Result<Endpoint::Post> post =
          harness_->rank(1).endpoint(0).post_recv({operation, i}, {}, in[i].span(), Token{});
      ASSERT_TRUE(post.ok()) << post.error().message;
      ASSERT_FALSE(deadline.passed(monotonic_ns())) << "receive " << i << " stays busy";
      answer = *post;
      if (answer == Endpoint::Post::kBusy) {
        poll_both();
      }
    }
    received += answer == Endpoint::Post::kDone ? 1U : 0U;
  }
  while (received < posted && !deadline.passed(monotonic_ns())) {
    poll_both();
  }
  ASSERT_EQ(received, posted);
  for (std::uint32_t i = 0; i < posted; ++i) {
    ASSERT_TRUE(in[i].holds(i)) << i;
  }
}

TEST_P(TransportData, BothDirectionsAtOnce) {
  start(2, 16);
  constexpr std::array<std::size_t, 4> kBoth = {64, 8192, (1U << 20) + 3, 5U << 20};
  std::deque<Buffer> buffers;
  std::vector<std::pair<const Operation*, std::uint64_t>> receives;
  for (const std::size_t size : kBoth) {
    for (int from = 0; from < 2; ++from) {
      // Both directions use the same tag: a lane has two.
      const Tag tag{make_operation(9, static_cast<std::uint32_t>(size), false), 1};
      const std::uint64_t seed = size * 2 + static_cast<std::uint64_t>(from);
      Buffer& out = buffers.emplace_back(size);
      Buffer& in = buffers.emplace_back(size);
      out.fill(seed);
      harness_->send(from, 1 - from, tag, out.span());
      receives.emplace_back(&harness_->recv(1 - from, from, tag, in.span()), seed);
    }
  }
  ASSERT_TRUE(harness_->finish_all());
  for (std::size_t i = 0; i < receives.size(); ++i) {
    EXPECT_TRUE(receives[i].first->succeeded());
    EXPECT_TRUE(buffers[2 * i + 1].holds(receives[i].second)) << i;
    EXPECT_TRUE(buffers[2 * i + 1].guards_intact()) << i;
  }
}

TEST_P(TransportData, FourRanksAllToAll) {
  constexpr int kRanks = 4;
  start(kRanks, 17);
  for (const std::size_t size : {std::size_t{0}, std::size_t{8192}, std::size_t{100003}}) {
    SCOPED_TRACE(size);
    const std::uint64_t operation = harness_->fresh_operation();
    std::deque<Buffer> outs;
    std::deque<Buffer> ins;
    std::vector<std::uint64_t> seeds;
    for (int from = 0; from < kRanks; ++from) {
      for (int to = 0; to < kRanks; ++to) {
        if (from != to) {
          const std::uint64_t seed = static_cast<std::uint64_t>(from * 100 + to);
          outs.emplace_back(size).fill(seed);
          seeds.push_back(seed);
          harness_->send(from, to, {operation, 0}, outs.back().span());
          harness_->recv(to, from, {operation, 0}, ins.emplace_back(size).span());
        }
      }
    }
    ASSERT_TRUE(harness_->finish_all());
    for (std::size_t i = 0; i < ins.size(); ++i) {
      EXPECT_TRUE(ins[i].holds(seeds[i]) && ins[i].guards_intact()) << i;
    }
  }
}

TEST_P(TransportData, SizeMismatchFailsBothSidesAndTheLaneStaysUsable) {
  start(2, 18);
  constexpr std::array<std::pair<std::size_t, std::size_t>, 8> kPairs = {{{0, 1},
                                                                          {1, 0},
                                                                          {48, 64},
                                                                          {8192, 8193},
                                                                          {8193, 8192},
                                                                          {1U << 20, 64},
                                                                          {64, 1U << 20},
                                                                          {300000, 300001}}};
  for (const auto& [sent, expected] : kPairs) {
    for (const bool recv_first : {true, false}) {
      SCOPED_TRACE(std::to_string(sent) + " sent, " + std::to_string(expected) + " expected");
      const std::uint64_t operation = harness_->fresh_operation();
      Buffer out(sent);
      Buffer in(expected);
      out.fill(operation);
      const Operation* recv = nullptr;
      const Operation* send = nullptr;
      if (recv_first) {
        recv = &harness_->recv(1, 0, {operation, 0}, in.span(), info_of(5));
        harness_->turns(2);
      }
      send = &harness_->send(0, 1, {operation, 0}, out.span(), info_of(6));
      if (!recv_first) {
        harness_->turns(30);
        recv = &harness_->recv(1, 0, {operation, 0}, in.span(), info_of(5));
      }
      ASSERT_TRUE(harness_->finish({recv, send}));
      EXPECT_TRUE(recv->failed);
      EXPECT_EQ(recv->code, Code::kMismatch);
      EXPECT_TRUE(recv->refused || recv->peer_info == info_of(6));
      EXPECT_TRUE(recv->peer_bytes == 0 || recv->peer_bytes == sent);
      EXPECT_TRUE(send->peer_bytes == 0 || send->peer_bytes == expected);
      if (sent > GetParam().eager_bytes_max) {
        EXPECT_TRUE(send->failed);
      }
      if (send->failed) {
        EXPECT_EQ(send->code, Code::kMismatch);
      }
      EXPECT_TRUE(in.guards_intact());
      expect_word_of_refusal(operation, send->failed);
    }
  }
  harness_->exchange(0, 1);
  EXPECT_TRUE(harness_->notices(1).empty());
  EXPECT_TRUE(harness_->dead(0).empty() && harness_->dead(1).empty());
}

// A rank that sleeps in poll(2) on the transport's descriptors is woken by a message.
TEST_P(TransportData, DescriptorsWakeTheReceiver) {
  start(2, 19);
  harness_->exchange(0, 1);
  std::vector<int> descriptors;
  harness_->rank(1).wait_descriptors(&descriptors);
  if (descriptors.empty()) {
    return;  // lives in this process: there is nothing to wait for
  }
  const std::uint64_t operation = harness_->fresh_operation();
  Buffer out(100);
  Buffer in(100);
  out.fill(1);
  const Operation& recv = harness_->recv(1, 0, {operation, 0}, in.span());
  while (harness_->turn_of(1)) {
  }
  harness_->send(0, 1, {operation, 0}, out.span());
  const Deadline deadline = Deadline::after_ms(kWatchdogMs);
  while (!recv.done && !deadline.passed(monotonic_ns())) {
    harness_->turn_of(0);
    descriptors.clear();
    harness_->rank(1).wait_descriptors(&descriptors);
    std::vector<pollfd> polled;
    for (const int fd : descriptors) {
      polled.push_back({fd, POLLIN, 0});
    }
    if (::poll(polled.data(), polled.size(), 10) > 0) {
      harness_->turn_of(1);
    }
  }
  EXPECT_TRUE(recv.succeeded()) << "no descriptor became readable";
}

TEST_P(TransportData, MalformedAddressIsRefused) {
  start(2, 20);
  std::vector<std::byte> address = harness_->rank(1).address();
  EXPECT_FALSE(harness_->rank(0).set_address(1, {}).ok());
  EXPECT_FALSE(harness_->rank(0).set_address(1, std::span(address).first(address.size() / 2)).ok());
  std::vector<std::byte> noise(37, std::byte{0xee});
  const Status status = harness_->rank(0).set_address(1, noise);
  ASSERT_FALSE(status.ok());
  EXPECT_FALSE(status.error().message.empty());
}

INSTANTIATE_TEST_SUITE_P(All, TransportData, ::testing::ValuesIn(all_factories()),
                         [](const ::testing::TestParamInfo<Factory>& param) {
                           return param.param.name;
                         });

}  // namespace
}  // namespace isthmus::conformance
