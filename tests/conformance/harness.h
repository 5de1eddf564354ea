#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

#include "base/clock.h"
#include "base/hash.h"
#include "tests/conformance/world.h"

namespace isthmus::conformance {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::int64_t kWatchdogMs = 60'000;
#else
inline constexpr std::int64_t kWatchdogMs = 15'000;
#endif

// Bytes between guards: whoever writes outside the span is caught.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes), memory_(bytes + 2 * kGuardBytes, kGuard) {}

  std::span<std::byte> span() { return {memory_.data() + kGuardBytes, bytes_}; }

  // Content that depends on seed and position.
  void fill(std::uint64_t seed) {
    for (std::size_t i = 0; i < bytes_; i += kWord) {
      const std::uint64_t word = mix64(seed + i);
      std::memcpy(memory_.data() + kGuardBytes + i, &word, std::min(kWord, bytes_ - i));
    }
  }

  void clear(std::byte value) { std::memset(memory_.data() + kGuardBytes, int(value), bytes_); }

  bool holds(std::uint64_t seed) const {
    for (std::size_t i = 0; i < bytes_; i += kWord) {
      const std::uint64_t word = mix64(seed + i);
      if (std::memcmp(memory_.data() + kGuardBytes + i, &word, std::min(kWord, bytes_ - i)) != 0) {
        return false;
      }
    }
    return true;
  }

  bool guards_intact() const {
    for (std::size_t i = 0; i < kGuardBytes; ++i) {
      if (memory_[i] != kGuard || memory_[kGuardBytes + bytes_ + i] != kGuard) {
        return false;
      }
    }
    return true;
  }

  const std::vector<std::byte>& memory() const { return memory_; }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr std::size_t kWord = sizeof(std::uint64_t);
  static constexpr std::byte kGuard{0xa5};

  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

// One post and what became of it.
struct Operation {
  int rank = -1;
  int peer = -1;
  Tag tag;
  std::size_t size = 0;
  bool is_recv = false;
  bool at_once = false;  // answered kDone
  bool refused = false;  // the post itself failed, with `error`
  bool done = false;
  bool cancelled = false;
  bool failed = false;
  Code code = Code::kInternal;
  std::size_t bytes = 0;
  OperationInfo peer_info;
  std::uint64_t peer_bytes = 0;
  Error error;

  bool succeeded() const { return done && !failed; }
};

// Drives all ranks of a world from one thread, in turn, and checks on the way what always holds:
// at most one completion per post, on its own rank, none after kDone or cancel().
class Harness {
 public:
  Harness(const Factory& factory, int ranks, std::uint64_t seed)
      : ranks_(ranks),
        world_(factory.make(ranks, seed)),
        killed_(static_cast<std::size_t>(ranks)),
        notices_(static_cast<std::size_t>(ranks)),
        dead_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer != rank) {
          const Status status = world_->rank(rank).set_address(peer, world_->rank(peer).address());
          EXPECT_TRUE(status.ok()) << status.error().message;
        }
      }
    }
  }

  Transport& rank(int rank) { return world_->rank(rank); }

  std::vector<Notice>& notices(int rank) { return notices_[static_cast<std::size_t>(rank)]; }

  std::vector<int>& dead(int rank) { return dead_[static_cast<std::size_t>(rank)]; }

  // A number that no other operation of this world has.
  std::uint64_t fresh_operation() { return make_operation(7, ++last_operation_, false); }

  Operation& send(int from, int to, const Tag& tag, std::span<const std::byte> data,
                  const OperationInfo& info = {}) {
    Operation& operation = add(from, to, tag, data.size(), false);
    settle_post(operation, [&](Token token) {
      return rank(from).endpoint(to).post_send(tag, info, data, token);
    });
    return operation;
  }

  Operation& recv(int at, int from, const Tag& tag, std::span<std::byte> data,
                  const OperationInfo& info = {}) {
    Operation& operation = add(at, from, tag, data.size(), true);
    settle_post(operation, [&](Token token) {
      return rank(at).endpoint(from).post_recv(tag, info, data, token);
    });
    return operation;
  }

  void cancel(int at, int peer, std::uint64_t operation) {
    rank(at).endpoint(peer).cancel(operation);
    for (Operation& each : operations_) {
      if (each.rank == at && each.peer == peer && each.tag.operation == operation && !each.done) {
        each.cancelled = true;
      }
    }
  }

  // What World::kill() says; a killed rank is not driven any more.
  bool kill(int rank) {
    killed_[static_cast<std::size_t>(rank)] = world_->kill(rank);
    return killed_[static_cast<std::size_t>(rank)];
  }

  // One turn of every rank. False when nobody had anything to do.
  bool turn() {
    bool worked = false;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!killed_[static_cast<std::size_t>(rank)]) {
        worked = turn_of(rank) || worked;
      }
    }
    return worked;
  }

  bool turn_of(int rank) {
    Events events;
    const bool worked = world_->rank(rank).poll(&events);
    EXPECT_TRUE(worked || events.empty()) << "poll() brought events and says it did nothing";
    for (const Completion& completion : events.completions) {
      take(rank, completion);
    }
    for (Notice& notice : events.notices) {
      notices(rank).push_back(std::move(notice));
    }
    for (const int peer : events.dead) {
      dead(rank).push_back(peer);
    }
    return worked;
  }

  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      turn();
    }
  }

  // Until the condition holds; false when the watchdog bites, which fails the test.
  bool run_until(const std::function<bool()>& condition, const char* what) {
    const Deadline deadline = Deadline::after_ms(kWatchdogMs);
    while (!condition()) {
      if (!turn()) {
        ::sched_yield();
        if (deadline.passed(monotonic_ns())) {
          ADD_FAILURE() << "watchdog: waited in vain for " << what << "\n" << open_operations();
          return false;
        }
      }
    }
    return true;
  }

  bool finish(std::initializer_list<const Operation*> operations) {
    return run_until(
        [&] {
          for (const Operation* operation : operations) {
            if (!operation->done) {
              return false;
            }
          }
          return true;
        },
        "completions");
  }

  bool finish_all() {
    return run_until(
        [&] {
          while (first_open_ < operations_.size() &&
                 (operations_[first_open_].done || operations_[first_open_].cancelled)) {
            ++first_open_;
          }
          return first_open_ == operations_.size();
        },
        "all completions");
  }

  // A message each way: what was on its way between the two is very likely through after it.
  void exchange(int a, int b) {
    const std::uint64_t operation = fresh_operation();
    Buffer there(4096);
    Buffer back(4096);
    Buffer there_got(4096);
    Buffer back_got(4096);
    there.fill(operation);
    back.fill(operation + 1);
    const Operation& recv_b = recv(b, a, {operation, 0}, there_got.span());
    const Operation& send_a = send(a, b, {operation, 0}, there.span());
    const Operation& recv_a = recv(a, b, {operation, 1}, back_got.span());
    const Operation& send_b = send(b, a, {operation, 1}, back.span());
    if (!finish({&recv_a, &recv_b, &send_a, &send_b})) {
      return;
    }
    for (const Operation* each : {&recv_a, &recv_b, &send_a, &send_b}) {
      EXPECT_TRUE(each->succeeded()) << "lane " << a << "-" << b << ": " << each->error.message;
    }
    EXPECT_TRUE(there_got.holds(operation) && back_got.holds(operation + 1));
    EXPECT_TRUE(there_got.guards_intact() && back_got.guards_intact());
    turns(20);
  }

 private:
  Operation& add(int rank, int peer, const Tag& tag, std::size_t size, bool is_recv) {
    Operation& operation = operations_.emplace_back();
    operation.rank = rank;
    operation.peer = peer;
    operation.tag = tag;
    operation.size = size;
    operation.is_recv = is_recv;
    return operation;
  }

  void settle_post(Operation& operation, const std::function<Result<Endpoint::Post>(Token)>& post) {
    const Token token{&operation, static_cast<std::uint32_t>(operations_.size() - 1)};
    const Deadline deadline = Deadline::after_ms(kWatchdogMs);
    for (;;) {
      const Result<Endpoint::Post> result = post(token);
      if (!result.ok()) {
        operation.done = operation.refused = operation.failed = true;
        operation.code = result.error().code;
        operation.error = result.error();
        return;
      }
      if (*result == Endpoint::Post::kPosted) {
        return;
      }
      if (*result == Endpoint::Post::kDone) {
        operation.done = operation.at_once = true;
        operation.bytes = operation.size;
        return;
      }
      turn();
      if (deadline.passed(monotonic_ns())) {
        ADD_FAILURE() << "watchdog: a post stayed busy";
        operation.done = operation.failed = true;
        return;
      }
    }
  }

  void take(int rank, const Completion& completion) {
    Operation* operation = static_cast<Operation*>(completion.token.owner);
    ASSERT_NE(operation, nullptr);
    ASSERT_EQ(operation, &operations_.at(completion.token.step)) << "a token was changed";
    EXPECT_FALSE(operation->done) << "a second completion, or one after kDone";
    EXPECT_FALSE(operation->cancelled) << "a completion after cancel()";
    EXPECT_EQ(operation->rank, rank);
    EXPECT_EQ(operation->is_recv, completion.is_recv);
    operation->done = true;
    operation->failed = completion.failed;
    operation->code = completion.code;
    operation->bytes = completion.bytes;
    operation->peer_info = completion.peer_info;
    operation->peer_bytes = completion.peer_bytes;
    if (!completion.failed) {
      EXPECT_EQ(completion.bytes, operation->size);
    }
  }

  std::string open_operations() const {
    std::string text;
    for (const Operation& each : operations_) {
      if (!each.done && !each.cancelled && text.size() < 1000) {
        text += (each.is_recv ? "recv at " : "send at ") + std::to_string(each.rank) + " peer " +
                std::to_string(each.peer) + " message " + std::to_string(each.tag.message) +
                " of " + std::to_string(each.size) + " bytes\n";
      }
    }
    return text;
  }

  int ranks_;
  std::unique_ptr<World> world_;
  std::uint32_t last_operation_ = 0;
  std::size_t first_open_ = 0;
  std::deque<Operation> operations_;  // addresses stay
  std::vector<bool> killed_;
  std::vector<std::vector<Notice>> notices_;
  std::vector<std::vector<int>> dead_;
};

// The seed of a test, printed so that a failure can be run again.
inline std::uint64_t fixed_seed(std::uint64_t seed) {
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

}  // namespace isthmus::conformance
