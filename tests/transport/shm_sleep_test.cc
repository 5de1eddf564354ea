// Goal: no message is slept through: a thread that sleeps on a transport's descriptors after a
// poll() that found nothing is woken by whatever comes, also by room for what it wants to send.
// Method: ranks as threads that sleep without a time limit of their own, thousands of times; a
// watchdog ends the test when one sleeps on.
#include <atomic>
#include <cstdio>
#include <thread>

#include <poll.h>

#include "tests/conformance/shm_factory.h"

namespace isthmus {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kWatchdogMs = 60'000;
#else
constexpr int kWatchdogMs = 20'000;
#endif

// Polls until `wanted` completions came, asleep whenever there is nothing to do.
bool wait_asleep(Transport& transport, int wanted, int* sleeps) {
  Events events;
  std::vector<int> descriptors;
  for (int got = 0; got < wanted;) {
    events.clear();
    const bool moved = transport.poll(&events);
    for (const Completion& completion : events.completions) {
      if (completion.failed) {
        return false;
      }
      ++got;
    }
    if (moved || got >= wanted) {
      continue;
    }
    descriptors.clear();
    transport.wait_descriptors(&descriptors);
    std::vector<pollfd> polled;
    for (const int fd : descriptors) {
      polled.push_back({fd, POLLIN, 0});
    }
    ++*sleeps;
    if (::poll(polled.data(), polled.size(), kWatchdogMs) <= 0) {
      return false;
    }
  }
  return true;
}

// A ping-pong; the posts are made before the wait, so nothing but the peer can end it.
bool play(Transport& transport, int rank, std::size_t bytes, std::uint32_t rounds, int* sleeps) {
  Endpoint& lane = transport.endpoint(1 - rank);
  std::vector<std::byte> out(bytes);
  std::vector<std::byte> in(bytes);
  const auto send = [&](std::uint32_t round) {
    const Result<Endpoint::Post> post = lane.post_send({bytes, round}, {}, out, Token{});
    return post.ok() && (*post == Endpoint::Post::kDone || wait_asleep(transport, 1, sleeps));
  };
  const auto recv = [&](std::uint32_t round) {
    const Result<Endpoint::Post> post = lane.post_recv({bytes, round}, {}, in, Token{});
    return post.ok() && wait_asleep(transport, 1, sleeps);
  };
  for (std::uint32_t round = 0; round < rounds; ++round) {
    if (rank == 0 ? !send(round) || !recv(round) : !recv(round) || !send(round)) {
      return false;
    }
  }
  return true;
}

TEST(ShmSleep, NoMessageIsSleptThrough) {
  conformance::ShmWorld world(2, {});

  struct Size {
    std::size_t bytes;
    std::uint32_t rounds;
  };

  // The last one is larger than the ring: its sender sleeps until there is room.
  for (const Size& size :
       {Size{8, 5000}, Size{5000, 2000}, Size{20'000, 1000}, Size{1 << 20, 100}}) {
    SCOPED_TRACE(size.bytes);
    std::atomic<bool> fine{true};
    int sleeps[2] = {0, 0};
    const auto side = [&](int rank) {
      if (!play(world.rank(rank), rank, size.bytes, size.rounds, &sleeps[rank])) {
        fine.store(false);
      }
    };
    std::thread other([&] { side(1); });
    side(0);
    other.join();
    ASSERT_TRUE(fine.load());
    EXPECT_GT(sleeps[0] + sleeps[1], 0);
  }
}

}  // namespace
}  // namespace isthmus
