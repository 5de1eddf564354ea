#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "transport/message_pools.h"
#include "transport/priority.h"
#include "transport/tcp/messages.h"

namespace isthmus::tcp {

// What the lanes of a transport know of each other's messages that have chunks to write.
struct BulkBoard {
  std::array<std::size_t, kPriorityCount> counts{};  // of each priority
  std::array<std::int64_t, kPriorityCount>
      moved_ns{};  // the last chunk, or the first message's post
};

// The messages of one lane that have chunks to write. The first priority goes first; messages of
// one priority take turns, a chunk each. None starves: where another waits, it gets a chunk after
// kPassedMax of higher ones at the latest.
// Thread rule: the transport's. Owns nothing; keeps its part of the board right.
class BulkQueue {
 public:
  static constexpr std::uint32_t kPassedMax = 15;

  explicit BulkQueue(BulkBoard* board) : board_(board) {}

  bool empty() const { return first() == kPriorityCount; }

  // Whether another lane has chunks of a higher priority than all of this one, and moves: one whose
  // peer has taken nothing for this long has no claim to the links.
  bool outranked(std::int64_t still_ns) const {
    std::int64_t now = 0;
    for (std::size_t i = 0; i < first(); ++i) {
      if (board_->counts[i] != 0) {
        now = now == 0 ? monotonic_ns() : now;
        if (now - board_->moved_ns[i] < still_ns) {
          return true;
        }
      }
    }
    return false;
  }

  void push(Outgoing* out) {
    const auto index = static_cast<std::size_t>(out->info.priority);
    queues_[index].push(out);
    if (board_->counts[index]++ == 0) {
      board_->moved_ns[index] = monotonic_ns();
    }
  }

  // The message whose chunk is next; pushed again when it has more.
  Outgoing* pop() {
    const std::size_t next = choose();
    for (std::size_t i = next + 1; i < kPriorityCount; ++i) {
      passed_[i] += queues_[i].empty() ? 0U : 1U;
    }
    passed_[next] = 0;
    --board_->counts[next];
    board_->moved_ns[next] = monotonic_ns();
    return queues_[next].pop();
  }

  template <typename Unwanted>
  void drop_if(Unwanted&& unwanted) {
    for (std::size_t i = 0; i < kPriorityCount; ++i) {
      const std::size_t before = queues_[i].size();
      queues_[i].drop_if(unwanted);
      board_->counts[i] -= before - queues_[i].size();
    }
  }

 private:
  std::size_t first() const {
    std::size_t index = 0;
    while (index < kPriorityCount && queues_[index].empty()) {
      ++index;
    }
    return index;
  }

  std::size_t choose() const {
    for (std::size_t i = kPriorityCount; i-- > 0;) {
      if (!queues_[i].empty() && passed_[i] >= kPassedMax) {
        return i;
      }
    }
    return first();
  }

  BulkBoard* board_;
  std::array<Fifo<Outgoing*>, kPriorityCount> queues_;
  std::array<std::uint32_t, kPriorityCount> passed_{};  // chunks of higher ones while it waited
};

}  // namespace isthmus::tcp
