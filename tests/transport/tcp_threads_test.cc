// Goal: ranks that run at the same time, each on its own thread, move any mix of messages in both
// directions without loss; transports of one process share nothing. Method: seeded rounds of all to
// all with random sizes; every thread polls its own transport only (and tsan looks on).
#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "tests/transport/tcp_world.h"

namespace isthmus::tcp_test {
namespace {

constexpr int kRanks = 4;
constexpr std::uint32_t kRounds = 40;
constexpr std::uint32_t kMessages = 3;
constexpr std::uint64_t kSeed = 99;

// Both sides compute a message's size from its place.
std::size_t size_of(int from, int to, std::uint32_t round, std::uint32_t message) {
  const std::uint64_t hash = mix64(
      kSeed + static_cast<std::uint64_t>(from * kRanks + to) * 1'000'000 + round * 10 + message);
  return hash % 5 == 0 ? hash / 5 % 700'000 : hash / 5 % 6000;
}

std::uint64_t content_of(int from, int to, std::uint32_t round, std::uint32_t message) {
  return static_cast<std::uint64_t>(from * kRanks + to) << 32 | round << 8 | message;
}

class Rank {
 public:
  Rank(TcpWorld* world, int rank, std::atomic<int>* finished)
      : transport_(&world->at(rank)), rank_(rank), finished_(finished) {}

  void run() {
    std::mt19937_64 random(kSeed + static_cast<std::uint64_t>(rank_));
    for (std::uint32_t round = 0; round < kRounds && failures_ == 0; ++round) {
      run_round(round, &random);
    }
    finished_->fetch_add(1);
    // Others may still need what this rank has to send.
    wait([&] { return finished_->load() == kRanks; });
  }

  int failures() const { return failures_; }

 private:
  struct Buffers {
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in;
  };

  void run_round(std::uint32_t round, std::mt19937_64* random) {
    Buffers buffers;
    std::vector<std::pair<int, std::uint32_t>> order;
    for (int peer = 0; peer < kRanks; ++peer) {
      for (std::uint32_t message = 0; peer != rank_ && message < kMessages; ++message) {
        order.emplace_back(peer, message);
      }
    }
    std::shuffle(order.begin(), order.end(), *random);
    buffers.out.resize(order.size());
    buffers.in.resize(order.size());
    open_ = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto [peer, message] = order[i];
      buffers.out[i] =
          pattern(size_of(rank_, peer, round, message), content_of(rank_, peer, round, message));
      buffers.in[i].resize(size_of(peer, rank_, round, message));
      Endpoint& lane = transport_->endpoint(peer);
      const Tag tag{make_operation(1, round, false), message};
      count(lane.post_send(tag, {}, buffers.out[i], {}));
      if ((*random)() % 2 == 0) {
        poll();
      }
      count(lane.post_recv(tag, {}, buffers.in[i], {}));
    }
    wait([&] { return open_ == 0; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto [peer, message] = order[i];
      if (buffers.in[i] != pattern(buffers.in[i].size(), content_of(peer, rank_, round, message))) {
        ++failures_;
      }
    }
  }

  void count(const Result<Endpoint::Post>& post) {
    if (!post.ok() || *post == Endpoint::Post::kBusy) {
      ++failures_;
    } else if (*post == Endpoint::Post::kPosted) {
      ++open_;
    }
  }

  bool poll() {
    Events events;
    const bool moved = transport_->poll(&events);
    for (const Completion& completion : events.completions) {
      --open_;
      failures_ += completion.failed ? 1 : 0;
    }
    failures_ += events.dead.empty() ? 0 : 1;
    return moved;
  }

  void wait(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::after_ms(kWatchdogMs);
    while (!condition()) {
      if (!poll()) {
        ::sched_yield();
        if (deadline.passed(monotonic_ns())) {
          ++failures_;
          return;
        }
      }
    }
  }

  TcpTransport* transport_;
  int rank_;
  std::atomic<int>* finished_;
  int open_ = 0;
  int failures_ = 0;
};

TEST(TcpThreads, AllToAllAtOnce) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  TcpWorld world(kRanks);
  std::atomic<int> finished{0};
  std::vector<Rank> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back(&world, rank, &finished);
  }
  std::vector<std::thread> threads;
  for (Rank& rank : ranks) {
    threads.emplace_back([&rank] { rank.run(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.failures(), 0);
  }
}

}  // namespace
}  // namespace isthmus::tcp_test
