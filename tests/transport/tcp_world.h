#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

#include "base/clock.h"
#include "base/hash.h"
#include "transport/tcp/tcp_transport.h"

namespace isthmus::tcp_test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::int64_t kWatchdogMs = 100'000;
#else
inline constexpr std::int64_t kWatchdogMs = 25'000;
#endif

inline std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = mix64(seed + i);
    std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return out;
}

// Some ranks over TCP in one process, driven by the test's thread.
class TcpWorld {
 public:
  using Adjust = std::function<void(TcpOptions*)>;

  explicit TcpWorld(int size, const Adjust& adjust = {}) {
    for (int rank = 0; rank < size; ++rank) {
      TcpOptions options;
      options.rank = rank;
      options.size = size;
      options.incarnation = 0x1234567;
      options.config = 42;
      if (adjust) {
        adjust(&options);
      }
      Result<std::unique_ptr<TcpTransport>> made = TcpTransport::create(options);
      EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
      ranks_.push_back(std::move(*made));
    }
    events_.resize(ranks_.size());
    for (int rank = 0; rank < size; ++rank) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) {
          EXPECT_TRUE(at(rank).set_address(peer, at(peer).address()).ok());
        }
      }
    }
  }

  TcpTransport& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  // All that happened at a rank so far.
  Events& events(int rank) { return events_[static_cast<std::size_t>(rank)]; }

  // As SIGKILL would end it.
  void kill(int rank) { ranks_[static_cast<std::size_t>(rank)].reset(); }

  bool turn() {
    bool moved = false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      moved |= ranks_[rank] != nullptr && ranks_[rank]->poll(&events_[rank]);
    }
    return moved;
  }

  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      turn();
    }
  }

  bool run_until(const std::function<bool()>& condition, const char* what) {
    const Deadline deadline = Deadline::after_ms(kWatchdogMs);
    while (!condition()) {
      if (!turn()) {
        ::sched_yield();
        if (deadline.passed(monotonic_ns())) {
          ADD_FAILURE() << "watchdog: waited in vain for " << what;
          return false;
        }
      }
    }
    return true;
  }

  bool completed(int rank, std::uint32_t step) {
    const std::vector<Completion>& all = events(rank).completions;
    return std::any_of(all.begin(), all.end(),
                       [&](const Completion& each) { return each.token.step == step; });
  }

  // The completion with this token's step at a rank; one that failed with kInternal when there is
  // none.
  Completion outcome(int rank, std::uint32_t step) {
    for (const Completion& each : events(rank).completions) {
      if (each.token.step == step) {
        return each;
      }
    }
    Completion none;
    none.failed = true;
    return none;
  }

  bool wait_for(int rank, std::uint32_t step) {
    return run_until([&] { return completed(rank, step); }, "a completion");
  }

  Endpoint::Post send(int from, int to, const Tag& tag, std::span<const std::byte> data,
                      std::uint32_t step, const OperationInfo& info = {}) {
    Result<Endpoint::Post> post = at(from).endpoint(to).post_send(tag, info, data, {nullptr, step});
    EXPECT_TRUE(post.ok()) << (post.ok() ? "" : post.error().message);
    return post.ok() ? *post : Endpoint::Post::kBusy;
  }

  Endpoint::Post recv(int to, int from, const Tag& tag, std::span<std::byte> data,
                      std::uint32_t step, const OperationInfo& info = {}) {
    Result<Endpoint::Post> post = at(to).endpoint(from).post_recv(tag, info, data, {nullptr, step});
    EXPECT_TRUE(post.ok()) << (post.ok() ? "" : post.error().message);
    return post.ok() ? *post : Endpoint::Post::kBusy;
  }

  // A message each way, so that both are connected and what went before has arrived.
  void exchange(int a, int b) {
    const std::uint64_t operation = 0xe000000000000000ULL + ++exchanges_;
    const std::vector<std::byte> out = pattern(100, operation);
    std::vector<std::byte> in_a(100);
    std::vector<std::byte> in_b(100);
    const auto step = static_cast<std::uint32_t>(0xe0000000U + 2 * exchanges_);
    recv(a, b, {operation, 0}, in_a, step);
    recv(b, a, {operation, 0}, in_b, step + 1);
    send(a, b, {operation, 0}, out, 0xffffffffU);
    send(b, a, {operation, 0}, out, 0xffffffffU);
    ASSERT_TRUE(wait_for(a, step) && wait_for(b, step + 1));
    EXPECT_EQ(in_a, out);
    EXPECT_EQ(in_b, out);
  }

 private:
  std::vector<std::unique_ptr<TcpTransport>> ranks_;
  std::vector<Events> events_;
  std::uint64_t exchanges_ = 0;
};

}  // namespace isthmus::tcp_test
