// Goal: messages between processes, whatever carries them: any mix arrives; a dead, stopped or
// wrong peer is named on both sides in time; what was sent before an exit arrives. Method: forked
// ranks on one node (shared memory) and on two (TCP) that run the same bodies.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/hash.h"
#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::Ranks;

constexpr std::int64_t kNsPerMs = 1'000'000;

Status wait(const Result<WorkRef>& work) {
  return work.ok() ? (*work)->wait(Deadline::after_ms(30'000)) : Status(work.error());
}

// Counters that parent and ranks share.
class Counters {
 public:
  Counters() {
    void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    counters_ = static_cast<std::atomic<std::int64_t>*>(memory);
  }

  ~Counters() { ::munmap(counters_, 4096); }

  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  std::atomic<std::int64_t>& operator[](int index) const { return counters_[index]; }

  bool wait_for(int index, std::int64_t value) const {
    const Deadline deadline = Deadline::after_ms(20'000);
    while (counters_[index].load() < value) {
      if (deadline.passed(monotonic_ns())) {
        return false;
      }
      ::poll(nullptr, 0, 1);
    }
    return true;
  }

 private:
  std::atomic<std::int64_t>* counters_;
};

class Messages : public ::testing::TestWithParam<std::string> {
 protected:
  Ranks::Options options(int size) const {
    Ranks::Options out;
    out.size = size;
    for (int rank = 0; rank < size; ++rank) {
      out.node_ids.emplace_back(GetParam() == "Node" ? "a" : std::to_string(rank));
    }
    return out;
  }
};

std::uint64_t mix_of(int from, int to, std::uint64_t message) {
  return mix64(static_cast<std::uint64_t>(from * 100 + to) * 1'000'000 + message);
}

std::size_t size_of(int from, int to, std::uint64_t message) {
  const std::uint64_t hash = mix_of(from, to, message);
  return hash % 8 == 0 ? hash / 8 % 400'000 : hash / 8 % 9000;
}

TEST_P(Messages, AnyMixArrives) {
  Ranks ranks(options(4), [](World& world) {
    constexpr std::uint64_t kRounds = 30;
    constexpr std::uint64_t kEach = 3;
    struct One {
      std::vector<std::byte> buffer;
      WorkRef work;
      int from = -1;
      std::uint64_t message = 0;
    };
    Communicator& group = world.communicator();
    std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()));
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      std::vector<One> all;
      for (int peer = 0; peer < world.size(); ++peer) {
        for (std::uint64_t i = 0; peer != world.rank() && i < 2 * kEach; ++i) {
          One one;
          one.message = round * kEach + i / 2;
          one.from = i % 2 == 0 ? world.rank() : peer;
          const int to = i % 2 == 0 ? peer : world.rank();
          one.buffer.assign(size_of(one.from, to, one.message),
                            static_cast<std::byte>(mix_of(one.from, to, one.message)));
          all.push_back(std::move(one));
        }
      }
      std::vector<std::size_t> order(all.size());
      for (std::size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t i : order) {
        One& one = all[i];
        // Tags by message: the order of the posts does not matter.
        const auto tag = static_cast<std::uint32_t>(one.message);
        const int peer_index = static_cast<int>(i / (2 * kEach));
        const int peer = peer_index < world.rank() ? peer_index : peer_index + 1;
        if (one.from != world.rank()) {
          std::fill(one.buffer.begin(), one.buffer.end(), std::byte{0});
        }
        Result<WorkRef> work =
            one.from == world.rank()
                ? group.start_send(one.buffer.data(), one.buffer.size(), peer, tag)
                : group.start_recv(one.buffer.data(), one.buffer.size(), peer, tag);
        REQUIRE_RANK(work.ok());
        one.work = *work;
      }
      for (const One& one : all) {
        REQUIRE_RANK(wait(one.work).ok());
        if (one.from != world.rank()) {
          const auto value = static_cast<std::byte>(mix_of(one.from, world.rank(), one.message));
          REQUIRE_RANK(std::all_of(one.buffer.begin(), one.buffer.end(),
                                   [&](std::byte each) { return each == value; }));
        }
      }
    }
    return 0;
  });
  EXPECT_EQ(ranks.wait_all(), std::vector<int>(4, 0));
}

// Three ranks send to rank 0, which takes whatever comes: half of the receives are posted before
// the sends. Each sender's messages come in its order, and each receive tells its sender.
TEST_P(Messages, AReceiveFromAnyRankTakesWhatComes) {
  const Counters marks;
  Ranks ranks(options(4), [&](World& world) {
    constexpr int kEach = 10;
    Communicator& group = world.communicator();
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{100'000}}) {
      std::vector<char> data(bytes);
      if (world.rank() != 0) {
        REQUIRE_RANK(marks.wait_for(0, bytes == 64 ? 1 : 2));
        for (int i = 0; i < kEach; ++i) {
          std::fill(data.begin(), data.end(), static_cast<char>(world.rank() * 20 + i));
          REQUIRE_RANK(wait(group.start_send(data.data(), bytes, 0, 3)).ok());
        }
        continue;
      }
      std::vector<std::vector<char>> buffers(3 * kEach, data);
      std::vector<WorkRef> works;
      for (std::vector<char>& buffer : buffers) {
        if (works.size() == buffers.size() / 2) {
          marks[0].fetch_add(1);
        }
        Result<WorkRef> work = group.start_recv_any(buffer.data(), bytes, 3);
        REQUIRE_RANK(work.ok());
        works.push_back(*work);
      }
      std::array<int, 4> next{};
      for (std::size_t i = 0; i < works.size(); ++i) {
        REQUIRE_RANK(wait(works[i]).ok());
        const int from = works[i]->source();
        REQUIRE_RANK(from >= 1 && from <= 3);
        const char value = static_cast<char>(from * 20 + next[static_cast<std::size_t>(from)]++);
        REQUIRE_RANK(buffers[i].front() == value && buffers[i].back() == value);
      }
      REQUIRE_RANK(next == (std::array<int, 4>{0, kEach, kEach, kEach}));
    }
    // Nobody sends with this tag.
    if (world.rank() == 0) {
      CallOptions soon;
      soon.timeout_ms = 100;
      const Status none = wait(group.start_recv_any(nullptr, 0, 8, soon));
      REQUIRE_RANK(!none.ok() && none.error().code == Code::kTimeout);
      REQUIRE_RANK(none.error().message.find("any rank with tag 8") != std::string::npos);
    }
    return 0;
  });
  EXPECT_EQ(ranks.wait_all(), std::vector<int>(4, 0));
}

// Rank 0 waits for a message, and with a message that nobody receives; then rank 1 dies.
TEST_P(Messages, ADeadPeerIsNamedBySendAndReceive) {
  const Counters marks;
  Ranks::Options killed = options(2);
  killed.timeout_ms = 300'000;
  Ranks ranks(killed, [&](World& world) {
    Communicator& group = world.communicator();
    char byte = 0;
    std::vector<char> large(1 << 20);
    if (world.rank() == 1) {
      REQUIRE_RANK(wait(group.start_send(&byte, 1, 0, 1)).ok());
      (void)wait(group.start_recv(&byte, 1, 0, 9));
      return 0;
    }
    REQUIRE_RANK(wait(group.start_recv(&byte, 1, 1, 1)).ok());
    const Result<WorkRef> send = group.start_send(large.data(), large.size(), 1, 2);
    const Result<WorkRef> recv = group.start_recv(large.data(), large.size(), 1, 3);
    marks[0].store(1);
    for (const Result<WorkRef>* work : {&send, &recv}) {
      const Status status = wait(*work);
      REQUIRE_RANK(!status.ok());
      REQUIRE_RANK(status.error().culprit == 1);
      REQUIRE_RANK(status.error().message.find("rank 1 is gone") != std::string::npos);
    }
    marks[1].store(monotonic_ns() / kNsPerMs);
    return 0;
  });
  ASSERT_TRUE(marks.wait_for(0, 1));
  const std::int64_t killed_ms = monotonic_ns() / kNsPerMs;
  ::kill(ranks.pid(1), SIGKILL);
  EXPECT_EQ(ranks.wait(0), 0);
  EXPECT_LT(marks[1].load() - killed_ms, 2000);
}

TEST_P(Messages, AStoppedPeerIsNamedAtTheTimeLimit) {
  const Counters marks;
  Ranks::Options stopped = options(2);
  stopped.timeout_ms = 1000;
  Ranks ranks(stopped, [&](World& world) {
    Communicator& group = world.communicator();
    char byte = 0;
    std::vector<char> large(1 << 20);
    if (world.rank() == 1) {
      REQUIRE_RANK(wait(group.start_send(&byte, 1, 0, 1)).ok());
      marks.wait_for(1, 1);
      return 0;
    }
    REQUIRE_RANK(wait(group.start_recv(&byte, 1, 1, 1)).ok());
    marks[0].store(1);
    marks.wait_for(2, 1);
    const Status status = wait(group.start_send(large.data(), large.size(), 1, 2));
    REQUIRE_RANK(!status.ok() && status.error().code == Code::kTimeout);
    REQUIRE_RANK(status.error().message.find("rank 1") != std::string::npos);
    return 0;
  });
  ASSERT_TRUE(marks.wait_for(0, 1));
  ::kill(ranks.pid(1), SIGSTOP);
  marks[2].store(1);
  EXPECT_EQ(ranks.wait(0), 0);
  ::kill(ranks.pid(1), SIGCONT);
  marks[1].store(1);
  EXPECT_EQ(ranks.wait(1), 0);
}

// Large messages, which are asked for: both ranks hear of it, and go on.
TEST_P(Messages, SizesThatDifferFailBothRanks) {
  Ranks ranks(options(2), [](World& world) {
    Communicator& group = world.communicator();
    const int peer = 1 - world.rank();
    for (std::uint32_t round = 0; round < 10; ++round) {
      std::vector<char> mine(world.rank() == 0 ? 20'000 : 20'001);
      const Status status =
          wait(world.rank() == 0 ? group.start_send(mine.data(), mine.size(), peer, 1)
                                 : group.start_recv(mine.data(), mine.size(), peer, 1));
      REQUIRE_RANK(!status.ok() && status.error().code == Code::kMismatch);
      for (const char* size : {"20000 bytes", "20001 bytes"}) {
        REQUIRE_RANK(status.error().message.find(size) != std::string::npos);
      }
      std::vector<char> more(30'000, static_cast<char>(round));
      std::vector<char> got(30'000);
      const Result<WorkRef> send = group.start_send(more.data(), more.size(), peer, 2);
      REQUIRE_RANK(wait(group.start_recv(got.data(), got.size(), peer, 2)).ok());
      REQUIRE_RANK(wait(send).ok());
      REQUIRE_RANK(got == more);
    }
    return 0;
  });
  EXPECT_EQ(ranks.wait_all(), std::vector<int>(2, 0));
}

// Completed sends outlive their sender's orderly end, also when they are received long after.
TEST_P(Messages, WhatWasSentBeforeTheExitArrives) {
  const Counters marks;
  Ranks ranks(options(2), [&](World& world) {
    constexpr std::uint32_t kMessages = 25;
    Communicator& group = world.communicator();
    std::vector<char> data(4000, 'x');
    if (world.rank() == 0) {
      for (std::uint32_t i = 0; i < kMessages; ++i) {
        REQUIRE_RANK(wait(group.start_send(data.data(), data.size(), 1, 1)).ok());
      }
      world.shutdown("it has said all");
      return 0;
    }
    // One receive, so that a connection is there; the others when the sender is gone.
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      std::vector<char> got(4000);
      REQUIRE_RANK(wait(group.start_recv(got.data(), got.size(), 0, 1)).ok());
      REQUIRE_RANK(got == data);
      if (i == 0) {
        marks[0].store(1);
        marks.wait_for(1, 1);
      }
    }
    return 0;
  });
  ASSERT_TRUE(marks.wait_for(0, 1));
  EXPECT_EQ(ranks.wait(0), 0);
  marks[1].store(1);
  EXPECT_EQ(ranks.wait(1), 0);
}

INSTANTIATE_TEST_SUITE_P(Carriers, Messages, ::testing::Values("Node", "Nodes"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace isthmus
