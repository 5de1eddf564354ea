// Goal: every Transport ends things as endpoint.h says: cancel(), notices, goodbye, death.
// Method: one suite over all factories; all ranks polled in turn by one thread.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <random>

#include "tests/conformance/factories.h"
#include "tests/conformance/harness.h"

namespace isthmus::conformance {
namespace {

constexpr std::size_t kLarge = (3U << 20) + 1;

class TransportEnd : public ::testing::TestWithParam<Factory> {
 protected:
  void start(int ranks, std::uint64_t seed) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    random_.seed(seed);
    harness_ = std::make_unique<Harness>(GetParam(), ranks, seed);
  }

  std::mt19937_64 random_;
  std::unique_ptr<Harness> harness_;
};

TEST_P(TransportEnd, CancelledReceiveIsNotTouched) {
  start(2, 31);
  for (const std::size_t size : {std::size_t{0}, std::size_t{64}, std::size_t{8193}, kLarge}) {
    SCOPED_TRACE(size);
    const std::uint64_t operation = harness_->fresh_operation();
    Buffer out(size);
    Buffer in(size);
    out.fill(operation);
    harness_->recv(1, 0, {operation, 0}, in.span());
    harness_->cancel(1, 0, operation);
    const std::vector<std::byte> before = in.memory();
    // The data goes nowhere, and the sender is not left hanging.
    const Operation& send = harness_->send(0, 1, {operation, 0}, out.span());
    ASSERT_TRUE(harness_->finish({&send}));
    harness_->exchange(0, 1);
    EXPECT_EQ(in.memory(), before);
  }
}

TEST_P(TransportEnd, DataOfACancelledOperationIsDropped) {
  start(2, 32);
  for (const std::size_t size : {std::size_t{0}, std::size_t{64}, std::size_t{8193}, kLarge}) {
    SCOPED_TRACE(size);
    const std::uint64_t operation = harness_->fresh_operation();
    const std::uint64_t other = harness_->fresh_operation();
    Buffer out(size);
    Buffer kept(size);
    Buffer in(size);
    kept.fill(other);
    // Both come before any receive; only the cancelled one is lost.
    const Operation& send = harness_->send(0, 1, {operation, 0}, out.span());
    const Operation& send_kept = harness_->send(0, 1, {other, 0}, kept.span());
    harness_->turns(30);
    harness_->cancel(1, 0, operation);
    const Operation& recv = harness_->recv(1, 0, {other, 0}, in.span());
    ASSERT_TRUE(harness_->finish({&send, &send_kept, &recv}));
    EXPECT_TRUE(recv.succeeded() && in.holds(other));
    harness_->exchange(0, 1);
  }
}

TEST_P(TransportEnd, CancelledSendLeavesItsBuffer) {
  start(2, 33);
  for (const std::size_t size : {std::size_t{64}, std::size_t{8193}, kLarge}) {
    SCOPED_TRACE(size);
    const std::uint64_t operation = harness_->fresh_operation();
    Buffer out(size);
    Buffer in(size);
    out.fill(operation);
    harness_->send(0, 1, {operation, 0}, out.span());
    harness_->cancel(0, 1, operation);
    out.clear(std::byte{0x11});
    const Operation& recv = harness_->recv(1, 0, {operation, 0}, in.span());
    harness_->exchange(0, 1);
    // What was copied before the cancel may arrive, whole; nothing else may.
    if (recv.succeeded()) {
      EXPECT_TRUE(in.holds(operation));
    }
    harness_->cancel(1, 0, operation);
    harness_->exchange(0, 1);
    EXPECT_TRUE(in.guards_intact());
  }
}

TEST_P(TransportEnd, CancelOfAReceiveWhileItsDataArrives) {
  for (std::uint64_t seed = 40; seed < 46; ++seed) {
    start(2, seed);
    SCOPED_TRACE(seed);
    const std::uint64_t operation = harness_->fresh_operation();
    Buffer out(kLarge);
    Buffer in(kLarge);
    out.fill(seed);
    const Operation& recv = harness_->recv(1, 0, {operation, 0}, in.span());
    const Operation& send = harness_->send(0, 1, {operation, 0}, out.span());
    harness_->turns(static_cast<int>(random_() % 200));
    harness_->cancel(1, 0, operation);
    const std::vector<std::byte> before = in.memory();
    if (recv.done) {
      EXPECT_TRUE(recv.succeeded() && in.holds(seed));
    }
    ASSERT_TRUE(harness_->finish({&send}));
    harness_->exchange(0, 1);
    EXPECT_EQ(in.memory(), before);
    EXPECT_TRUE(in.guards_intact());
  }
}

TEST_P(TransportEnd, CancelOfASendWhileItsDataLeaves) {
  for (std::uint64_t seed = 60; seed < 66; ++seed) {
    start(2, seed);
    SCOPED_TRACE(seed);
    const std::uint64_t operation = harness_->fresh_operation();
    Buffer out(kLarge);
    Buffer in(kLarge);
    out.fill(seed);
    const Operation& recv = harness_->recv(1, 0, {operation, 0}, in.span());
    harness_->send(0, 1, {operation, 0}, out.span());
    harness_->turns(static_cast<int>(random_() % 200));
    harness_->cancel(0, 1, operation);
    out.clear(std::byte{0x22});
    harness_->exchange(0, 1);
    if (recv.succeeded()) {
      EXPECT_TRUE(in.holds(seed));
    }
    harness_->cancel(1, 0, operation);
    const std::vector<std::byte> before = in.memory();
    harness_->exchange(0, 1);
    EXPECT_EQ(in.memory(), before);
  }
}

TEST_P(TransportEnd, CancelAfterTheEndChangesNothing) {
  start(2, 34);
  const std::uint64_t operation = harness_->fresh_operation();
  Buffer out(20000);
  Buffer in(20000);
  out.fill(1);
  const Operation& recv = harness_->recv(1, 0, {operation, 0}, in.span());
  const Operation& send = harness_->send(0, 1, {operation, 0}, out.span());
  ASSERT_TRUE(harness_->finish({&recv, &send}));
  harness_->cancel(0, 1, operation);
  harness_->cancel(1, 0, operation);
  harness_->cancel(1, 0, operation);
  harness_->exchange(0, 1);
  EXPECT_TRUE(in.holds(1));
}

TEST_P(TransportEnd, CancelLeavesOtherOperationsAndPeersAlone) {
  start(3, 35);
  const std::uint64_t gone = harness_->fresh_operation();
  const std::uint64_t kept = harness_->fresh_operation();
  std::deque<Buffer> outs;
  std::deque<Buffer> ins;
  std::vector<const Operation*> operations;
  // Rank 2 expects both operations from both ranks, several messages each, and cancels one lane.
  for (int from = 0; from < 2; ++from) {
    for (std::uint32_t message = 0; message < 4; ++message) {
      for (const std::uint64_t operation : {gone, kept}) {
        const std::size_t size = message * 30000 + 10;
        Buffer& out = outs.emplace_back(size);
        out.fill(operation + message);
        Buffer& in = ins.emplace_back(size);
        operations.push_back(&harness_->recv(2, from, {operation, message}, in.span()));
        operations.push_back(&harness_->send(from, 2, {operation, message}, out.span()));
      }
    }
  }
  harness_->turns(2);
  harness_->cancel(2, 0, gone);
  ASSERT_TRUE(harness_->finish_all());
  for (const Operation* each : operations) {
    if (each->is_recv && !each->cancelled) {
      EXPECT_TRUE(each->succeeded());
    }
    if (each->is_recv && (each->peer == 1 || each->tag.operation == kept)) {
      EXPECT_FALSE(each->cancelled);
    }
  }
  for (std::size_t i = 0; i < ins.size(); ++i) {
    const Operation& recv = *operations[2 * i];
    if (!recv.cancelled) {
      EXPECT_TRUE(ins[i].holds(recv.tag.operation + recv.tag.message));
    }
    EXPECT_TRUE(ins[i].guards_intact());
  }
}

// A cancel of 50 operations between live ones, again and again: the lane forgets no more than told.
TEST_P(TransportEnd, CancelStorm) {
  start(2, 36);
  for (int round = 0; round < 10; ++round) {
    std::deque<Buffer> buffers;
    std::vector<std::pair<const Operation*, Buffer*>> live;
    std::vector<std::uint64_t> doomed;
    for (int i = 0; i < 50; ++i) {
      const std::uint64_t operation = harness_->fresh_operation();
      const std::size_t size = random_() % 40000;
      Buffer& out = buffers.emplace_back(size);
      Buffer& in = buffers.emplace_back(size);
      out.fill(operation);
      const bool recv_first = random_() % 2 == 0;
      const Operation* recv =
          recv_first ? &harness_->recv(1, 0, {operation, 0}, in.span()) : nullptr;
      harness_->send(0, 1, {operation, 0}, out.span());
      if (recv == nullptr) {
        recv = &harness_->recv(1, 0, {operation, 0}, in.span());
      }
      if (random_() % 2 == 0) {
        doomed.push_back(operation);
      } else {
        live.emplace_back(recv, &in);
      }
      harness_->turns(static_cast<int>(random_() % 2));
    }
    for (const std::uint64_t operation : doomed) {
      const bool sender_first = random_() % 2 == 0;
      harness_->cancel(sender_first ? 0 : 1, sender_first ? 1 : 0, operation);
      harness_->cancel(sender_first ? 1 : 0, sender_first ? 0 : 1, operation);
    }
    ASSERT_TRUE(harness_->finish_all());
    for (const auto& [recv, in] : live) {
      EXPECT_TRUE(recv->succeeded() && in->holds(recv->tag.operation) && in->guards_intact());
    }
  }
  harness_->exchange(0, 1);
}

TEST_P(TransportEnd, NoticesArriveWithTheirSender) {
  start(3, 37);
  harness_->exchange(0, 1);
  harness_->exchange(2, 1);
  Notice notice;
  notice.kind = Notice::Kind::kRefused;
  notice.group = 0xfedcba98U;
  notice.sequence = 77;
  notice.culprit = 2;
  notice.code = Code::kMismatch;
  notice.text = "rank 2 called all_gather where rank 0 called all_reduce";
  harness_->rank(0).notify(1, notice);
  Notice aborted;
  aborted.kind = Notice::Kind::kAborted;
  aborted.text = std::string(kNoticeTextMax, 'x');
  harness_->rank(2).notify(1, aborted);
  Notice dead;
  dead.kind = Notice::Kind::kDead;
  dead.culprit = 1;
  dead.text = std::string(kNoticeTextMax + 500, 'y');
  harness_->rank(2).notify(1, dead);
  std::vector<Notice>& got = harness_->notices(1);
  ASSERT_TRUE(harness_->run_until([&] { return got.size() >= 3; }, "three notices"));
  harness_->exchange(0, 1);
  ASSERT_EQ(got.size(), 3U);
  const auto find = [&](Notice::Kind kind) {
    return *std::find_if(got.begin(), got.end(),
                         [&](const Notice& each) { return each.kind == kind; });
  };
  const Notice refused = find(Notice::Kind::kRefused);
  EXPECT_EQ(refused.from, 0);
  EXPECT_EQ(refused.group, notice.group);
  EXPECT_EQ(refused.sequence, notice.sequence);
  EXPECT_EQ(refused.culprit, notice.culprit);
  EXPECT_EQ(refused.code, notice.code);
  EXPECT_EQ(refused.text, notice.text);
  EXPECT_EQ(find(Notice::Kind::kAborted).from, 2);
  EXPECT_EQ(find(Notice::Kind::kAborted).text, aborted.text);
  EXPECT_EQ(find(Notice::Kind::kDead).text, std::string(kNoticeTextMax, 'y'));
  EXPECT_TRUE(harness_->notices(0).empty() && harness_->notices(2).empty());
}

TEST_P(TransportEnd, GoodbyeEndsWhatWaitsForThePeer) {
  start(3, 38);
  harness_->exchange(0, 1);
  harness_->exchange(0, 2);
  Buffer in(1000);
  Buffer large(kLarge);
  Buffer other_in(1000);
  Buffer other_out(1000);
  other_out.fill(5);
  const std::uint64_t operation = harness_->fresh_operation();
  const Operation& recv = harness_->recv(0, 1, {operation, 0}, in.span());
  const Operation& send = harness_->send(0, 1, {operation, 1}, large.span());
  const Operation& other = harness_->recv(0, 2, {operation, 0}, other_in.span());
  harness_->turns(5);
  harness_->rank(1).shutdown();
  harness_->rank(1).shutdown();
  ASSERT_TRUE(harness_->finish({&recv, &send}));
  EXPECT_TRUE(recv.failed);
  EXPECT_EQ(recv.code, Code::kPeerDead);
  if (send.failed) {
    EXPECT_EQ(send.code, Code::kPeerDead);
  }
  ASSERT_TRUE(harness_->run_until([&] { return !harness_->notices(0).empty(); }, "the goodbye"));
  EXPECT_EQ(harness_->notices(0).front().kind, Notice::Kind::kGoodbye);
  EXPECT_EQ(harness_->notices(0).front().from, 1);
  // Leaving is no death, and it concerns nobody else.
  harness_->send(2, 0, {operation, 0}, other_out.span());
  ASSERT_TRUE(harness_->finish({&other}));
  EXPECT_TRUE(other.succeeded() && other_in.holds(5));
  harness_->exchange(0, 2);
  EXPECT_EQ(harness_->notices(0).size(), 1U);
  EXPECT_TRUE(harness_->dead(0).empty());
  // Later posts fail at once, with a sentence that names the peer.
  const Operation& late = harness_->send(0, 1, {operation, 2}, in.span());
  const Operation& late_recv = harness_->recv(0, 1, {operation, 3}, in.span());
  for (const Operation* each : {&late, &late_recv}) {
    ASSERT_TRUE(each->refused);
    EXPECT_EQ(each->code, Code::kPeerDead);
    EXPECT_EQ(each->error.culprit, 1);
    EXPECT_NE(each->error.message.find("rank 1"), std::string::npos) << each->error.message;
  }
  // So do those of the one that left.
  const Operation& own = harness_->send(1, 0, {operation, 4}, in.span());
  EXPECT_TRUE(own.refused);
  Events events;
  EXPECT_FALSE(harness_->rank(1).poll(&events));
  EXPECT_TRUE(events.empty());
}

// A barrier's last message: its sender may be gone before it is received.
TEST_P(TransportEnd, CompletedSendsOutliveTheGoodbye) {
  start(2, 39);
  harness_->exchange(0, 1);
  const std::uint64_t operation = harness_->fresh_operation();
  Buffer out(64);
  Buffer in(64);
  Buffer late_in(64);
  out.fill(9);
  const Operation& recv = harness_->recv(1, 0, {operation, 0}, in.span());
  const Operation& send = harness_->send(0, 1, {operation, 0}, out.span());
  const Operation& unmatched = harness_->send(0, 1, {operation, 1}, out.span());
  ASSERT_TRUE(harness_->finish({&send}));
  // A send that does not wait for its receive is over by now.
  harness_->turns(50);
  const bool over = unmatched.done;
  harness_->rank(0).shutdown();
  ASSERT_TRUE(harness_->finish({&recv}));
  EXPECT_TRUE(recv.succeeded() && in.holds(9));
  ASSERT_TRUE(harness_->run_until([&] { return !harness_->notices(1).empty(); }, "the goodbye"));
  if (over) {
    const Operation& late = harness_->recv(1, 0, {operation, 1}, late_in.span());
    ASSERT_TRUE(harness_->finish({&late}));
    EXPECT_TRUE(late.succeeded() && late_in.holds(9));
  }
}

// Completed sends, then the goodbye at once, before the receiver has had a turn.
TEST_P(TransportEnd, TheGoodbyeDoesNotOvertakeData) {
  start(2, 44);
  harness_->exchange(0, 1);
  const std::uint64_t operation = harness_->fresh_operation();
  constexpr std::uint32_t kMessages = 20;
  Buffer out(3000);
  out.fill(8);
  std::deque<Buffer> ins(kMessages, Buffer(3000));
  std::vector<const Operation*> sends;
  std::vector<const Operation*> receives;
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    receives.push_back(&harness_->recv(1, 0, {operation, i}, ins[i].span()));
  }
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    sends.push_back(&harness_->send(0, 1, {operation, i}, out.span()));
  }
  const auto over = [](const Operation* each) { return each->done; };
  for (int i = 0; i < 200 && !std::all_of(sends.begin(), sends.end(), over); ++i) {
    harness_->turn_of(0);
  }
  harness_->rank(0).shutdown();
  harness_->cancel(0, 1, operation);  // tells the harness that no completion follows
  ASSERT_TRUE(harness_->finish_all());
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    if (sends[i]->succeeded()) {
      EXPECT_TRUE(receives[i]->succeeded() && ins[i].holds(8)) << i;
    }
  }
}

TEST_P(TransportEnd, DeathFailsAllThatWaitsForTheDead) {
  start(4, 41);
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) {
      harness_->exchange(a, b);
    }
  }
  const std::uint64_t operation = harness_->fresh_operation();
  std::deque<Buffer> buffers;
  std::vector<const Operation*> doomed;
  std::vector<const Operation*> alive;
  for (const int rank : {0, 1, 3}) {
    for (std::uint32_t message = 0; message < 5; ++message) {
      Buffer& in = buffers.emplace_back(message * 5000);
      Buffer& out = buffers.emplace_back(kLarge);
      doomed.push_back(&harness_->recv(rank, 2, {operation, message}, in.span()));
      doomed.push_back(&harness_->send(rank, 2, {operation, message}, out.span()));
    }
    const int next = rank == 0 ? 1 : (rank == 1 ? 3 : 0);
    Buffer& in = buffers.emplace_back(std::size_t{20000});
    Buffer& out = buffers.emplace_back(std::size_t{20000});
    alive.push_back(&harness_->recv(next, rank, {operation, 0}, in.span()));
    alive.push_back(&harness_->send(rank, next, {operation, 0}, out.span()));
  }
  harness_->turns(3);
  if (!harness_->kill(2)) {
    GTEST_SKIP() << "cannot be killed within one process";
  }
  ASSERT_TRUE(harness_->finish_all());
  for (const Operation* each : doomed) {
    EXPECT_TRUE(each->failed || !each->is_recv);
    if (each->failed) {
      EXPECT_EQ(each->code, Code::kPeerDead);
    }
  }
  for (const Operation* each : alive) {
    EXPECT_TRUE(each->succeeded());
  }
  for (const int rank : {0, 1, 3}) {
    ASSERT_TRUE(
        harness_->run_until([&] { return !harness_->dead(rank).empty(); }, "word of the death"));
  }
  harness_->exchange(0, 1);
  harness_->exchange(1, 3);
  harness_->exchange(0, 3);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(harness_->dead(rank), std::vector<int>{2}) << "seen by rank " << rank;
    EXPECT_TRUE(harness_->notices(rank).empty());
    const Operation& late = harness_->send(rank, 2, {operation, 9}, buffers[0].span());
    const Operation& late_recv = harness_->recv(rank, 2, {operation, 10}, buffers[0].span());
    for (const Operation* each : {&late, &late_recv}) {
      ASSERT_TRUE(each->refused);
      EXPECT_EQ(each->code, Code::kPeerDead);
      EXPECT_EQ(each->error.culprit, 2);
      EXPECT_NE(each->error.message.find("rank 2"), std::string::npos) << each->error.message;
    }
  }
  for (const Buffer& each : buffers) {
    EXPECT_TRUE(each.guards_intact());
  }
}

// Cancel, then death: nothing is told about what was cancelled.
TEST_P(TransportEnd, CancelledOperationsDoNotFailWithTheDead) {
  start(2, 42);
  harness_->exchange(0, 1);
  const std::uint64_t gone = harness_->fresh_operation();
  const std::uint64_t kept = harness_->fresh_operation();
  Buffer in(1000);
  Buffer out(kLarge);
  Buffer in_kept(1000);
  harness_->recv(0, 1, {gone, 0}, in.span());
  harness_->send(0, 1, {gone, 1}, out.span());
  const Operation& recv = harness_->recv(0, 1, {kept, 0}, in_kept.span());
  if (!harness_->kill(1)) {
    GTEST_SKIP() << "cannot be killed within one process";
  }
  harness_->cancel(0, 1, gone);
  ASSERT_TRUE(harness_->finish({&recv}));
  EXPECT_EQ(recv.code, Code::kPeerDead);
  harness_->turns(50);
  harness_->rank(0).notify(1, Notice{});
  harness_->cancel(0, 1, kept);
  harness_->rank(0).shutdown();
}

TEST_P(TransportEnd, ShutdownWithEverythingInFlightTouchesNothingLater) {
  start(2, 43);
  harness_->exchange(0, 1);
  const std::uint64_t operation = harness_->fresh_operation();
  Buffer in(kLarge);
  Buffer out(kLarge);
  Buffer in_other(kLarge);
  Buffer out_other(kLarge);
  out.fill(1);
  out_other.fill(2);
  harness_->recv(0, 1, {operation, 0}, in.span());
  harness_->send(0, 1, {operation, 0}, out.span());
  const Operation& recv = harness_->recv(1, 0, {operation, 0}, in_other.span());
  harness_->send(1, 0, {operation, 0}, out_other.span());
  harness_->turns(static_cast<int>(random_() % 30));
  harness_->rank(0).shutdown();
  const std::vector<std::byte> before = in.memory();
  out.clear(std::byte{0x33});
  harness_->cancel(0, 1, operation);  // allowed after shutdown(); tells the harness, too
  ASSERT_TRUE(harness_->finish({&recv}));
  if (recv.succeeded()) {
    EXPECT_TRUE(in_other.holds(1));
  }
  harness_->turns(50);
  EXPECT_EQ(in.memory(), before);
}

INSTANTIATE_TEST_SUITE_P(All, TransportEnd, ::testing::ValuesIn(all_factories()),
                         [](const ::testing::TestParamInfo<Factory>& param) {
                           return param.param.name;
                         });

}  // namespace
}  // namespace isthmus::conformance
