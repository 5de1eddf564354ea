// Goal: a FaultTransport does what its script says, no more. Method: two simulated ranks, rank 0's
// transport wrapped; each test plays one kind of fault.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "transport/fault/fault_transport.h"
#include "transport/sim/sim_network.h"

namespace isthmus {
namespace {

constexpr std::uint64_t kOperation = make_operation(1, 1, false);

using Kind = FaultRule::Kind;
using Side = FaultRule::Side;
using Post = Endpoint::Post;

class Fault : public ::testing::Test {
 protected:
  void start(std::vector<FaultRule> rules, bool eager = true) {
    SimConfig config;
    config.ranks = 3;
    config.eager_bytes_max = eager ? SimConfig::kAllEager : SimConfig::kNoneEager;
    network_ = std::make_unique<SimNetwork>(config);
    faulty_ = std::make_unique<FaultTransport>(network_->transport(0), FaultScript{1, rules});
    peer_ = network_->transport(1);
    other_ = network_->transport(2);
  }

  ~Fault() override {
    faulty_.reset();
    peer_.reset();
    other_.reset();
  }

  Result<Post> send(std::uint32_t message, int to = 1) {
    return faulty_->endpoint(to).post_send({kOperation, message}, {}, out_, {this, message});
  }

  Result<Post> recv(std::uint32_t message, int from = 1) {
    return faulty_->endpoint(from).post_recv({kOperation, message}, {}, in_, {this, message});
  }

  void peer_sends(std::uint32_t message) {
    EXPECT_TRUE(peer_->endpoint(0).post_send({kOperation, message}, {}, out_, {}).ok());
  }

  void peer_receives(std::uint32_t message) {
    EXPECT_TRUE(peer_->endpoint(0).post_recv({kOperation, message}, {}, peer_in_, {}).ok());
  }

  void drain() {
    for (int i = 0; i < 200; ++i) {
      faulty_->poll(&seen_);
      peer_->poll(&peer_seen_);
      other_->poll(&other_seen_);
    }
  }

  std::unique_ptr<SimNetwork> network_;
  std::unique_ptr<FaultTransport> faulty_;
  std::unique_ptr<Transport> peer_;
  std::unique_ptr<Transport> other_;
  std::array<std::byte, 100> out_{std::byte{7}};
  std::array<std::byte, 100> in_{};
  std::array<std::byte, 100> peer_in_{};
  Events seen_;
  Events peer_seen_;
  Events other_seen_;
};

TEST_F(Fault, BusyForTheNextPosts) {
  start({{.kind = Kind::kBusy, .peer = 1, .side = Side::kSends, .skip = 1, .times = 3}});
  EXPECT_EQ(*send(0), Post::kDone);
  EXPECT_EQ(*send(9, 2), Post::kDone);
  EXPECT_EQ(*recv(0), Post::kPosted);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(*send(1), Post::kBusy);
  }
  EXPECT_EQ(*send(1), Post::kDone);
  EXPECT_EQ(faulty_->injected(Kind::kBusy), 3U);
}

TEST_F(Fault, DelayedByPolls) {
  start({{.kind = Kind::kDelay, .times = 2, .amount = 5}});
  // What would have been done at once completes later, too.
  EXPECT_EQ(*send(0), Post::kPosted);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(faulty_->poll(&seen_));
    EXPECT_TRUE(seen_.completions.empty());
  }
  EXPECT_TRUE(faulty_->poll(&seen_));
  ASSERT_EQ(seen_.completions.size(), 1U);
  EXPECT_EQ(seen_.completions[0].token.owner, this);
  EXPECT_EQ(seen_.completions[0].bytes, out_.size());
  EXPECT_EQ(*recv(1), Post::kPosted);
  peer_sends(1);
  drain();
  ASSERT_EQ(seen_.completions.size(), 2U);
  EXPECT_TRUE(seen_.completions[1].is_recv);
  EXPECT_EQ(in_, out_);
}

TEST_F(Fault, Reordered) {
  start({{.kind = Kind::kReorder, .amount = 8}});
  for (std::uint32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(*send(i), Post::kPosted);
  }
  drain();
  std::vector<std::uint32_t> order;
  for (const Completion& completion : seen_.completions) {
    order.push_back(completion.token.step);
  }
  EXPECT_EQ(order.size(), 50U);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  EXPECT_EQ(std::unique(order.begin(), order.end()), order.end());
}

TEST_F(Fault, FailedPost) {
  const Error error{.code = Code::kResource, .message = "no memory for rank 1"};
  start({{.kind = Kind::kFailPost, .times = 1, .error = error}});
  const Result<Post> refused = send(0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kResource);
  EXPECT_EQ(refused.error().message, error.message);
  EXPECT_EQ(*send(0), Post::kDone);
}

TEST_F(Fault, FailedCompletion) {
  start({{.kind = Kind::kFailCompletion, .times = 2, .error = {.code = Code::kIo, .message = ""}}});
  EXPECT_EQ(*recv(0), Post::kPosted);
  EXPECT_EQ(*send(1), Post::kPosted);
  peer_sends(0);
  drain();
  ASSERT_EQ(seen_.completions.size(), 2U);
  for (const Completion& completion : seen_.completions) {
    EXPECT_TRUE(completion.failed);
    EXPECT_EQ(completion.code, Code::kIo);
  }
}

TEST_F(Fault, LostCompletion) {
  start({{.kind = Kind::kLoseCompletion, .times = 2}});
  EXPECT_EQ(*recv(0), Post::kPosted);
  EXPECT_EQ(*send(1), Post::kPosted);
  EXPECT_EQ(*send(2), Post::kDone);
  peer_sends(0);
  drain();
  EXPECT_TRUE(seen_.completions.empty());
  faulty_->endpoint(1).cancel(kOperation);
  EXPECT_EQ(*recv(3), Post::kPosted);
  peer_sends(3);
  drain();
  EXPECT_EQ(seen_.completions.size(), 1U);
}

TEST_F(Fault, TruncatedMessagesMismatch) {
  start({{.kind = Kind::kTruncate, .side = Side::kSends, .times = 1, .amount = 1}}, false);
  EXPECT_EQ(*send(0), Post::kPosted);
  peer_receives(0);
  drain();
  ASSERT_EQ(seen_.completions.size(), 1U);
  ASSERT_EQ(peer_seen_.completions.size(), 1U);
  EXPECT_EQ(seen_.completions[0].code, Code::kMismatch);
  EXPECT_EQ(peer_seen_.completions[0].code, Code::kMismatch);
  EXPECT_EQ(peer_seen_.completions[0].peer_bytes, out_.size() - 1);
}

TEST_F(Fault, DroppedNotices) {
  start({{.kind = Kind::kDropNotice, .peer = 1, .side = Side::kSends, .times = 1},
         {.kind = Kind::kDropNotice, .side = Side::kReceives, .skip = 1, .times = 1}});
  for (std::uint32_t i = 0; i < 3; ++i) {
    Notice notice;
    notice.sequence = i;
    faulty_->notify(1, notice);
    faulty_->notify(2, notice);
    peer_->notify(0, notice);
  }
  drain();
  EXPECT_EQ(peer_seen_.notices.size(), 2U);
  EXPECT_EQ(other_seen_.notices.size(), 3U);
  EXPECT_EQ(seen_.notices.size(), 2U);
}

TEST_F(Fault, AKilledPeerStaysDead) {
  start({{.kind = Kind::kKillPeer, .peer = 1, .skip = 3, .times = 1}}, false);
  EXPECT_EQ(*recv(0), Post::kPosted);
  EXPECT_EQ(*send(1), Post::kPosted);
  EXPECT_EQ(*recv(2), Post::kPosted);
  EXPECT_EQ(*recv(0, 2), Post::kPosted);
  const Result<Post> refused = send(3);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kPeerDead);
  EXPECT_EQ(refused.error().culprit, 1);
  peer_sends(0);
  peer_->notify(0, Notice{});
  drain();
  peer_.reset();
  peer_ = nullptr;
  for (int i = 0; i < 50; ++i) {
    faulty_->poll(&seen_);
  }
  EXPECT_EQ(seen_.dead, std::vector<int>{1});
  EXPECT_TRUE(seen_.notices.empty());
  ASSERT_EQ(seen_.completions.size(), 3U);
  for (const Completion& completion : seen_.completions) {
    EXPECT_TRUE(completion.failed);
    EXPECT_EQ(completion.code, Code::kPeerDead);
  }
  // The other peer knows nothing of it.
  EXPECT_TRUE(other_->endpoint(0).post_send({kOperation, 0}, {}, out_, {}).ok());
  for (int i = 0; i < 50; ++i) {
    faulty_->poll(&seen_);
    other_->poll(&other_seen_);
  }
  ASSERT_EQ(seen_.completions.size(), 4U);
  EXPECT_FALSE(seen_.completions[3].failed);
}

TEST_F(Fault, TheSeedDecides) {
  std::array<std::vector<bool>, 2> busy;
  for (std::vector<bool>& each : busy) {
    start({{.kind = Kind::kBusy, .per_mille = 300}});
    for (std::uint32_t i = 0; i < 200; ++i) {
      each.push_back(*send(i) == Post::kBusy);
    }
    faulty_.reset();
    peer_.reset();
    other_.reset();
  }
  EXPECT_EQ(busy[0], busy[1]);
  const std::ptrdiff_t count = std::count(busy[0].begin(), busy[0].end(), true);
  EXPECT_GT(count, 30);
  EXPECT_LT(count, 90);
}

}  // namespace
}  // namespace isthmus
