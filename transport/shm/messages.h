#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/endpoint.h"
#include "transport/message_pools.h"
#include "transport/shm/ring.h"

namespace isthmus::shm {

// What a lane remembers about messages: posts, early credits and what came unexpectedly.
// Thread rule: the transport's.

// Eager bytes, counted by eager_cost(), that a sender may have in the receiver's pool.
inline constexpr std::uint64_t kEagerQuota = std::uint64_t{256} << 10;

// One message that this rank sends.
struct Outgoing {
  enum class State : std::uint8_t {
    kCreditOnly,  // the receiver is ready, the message is not posted yet
    kEager,       // goes without asking, and waits for room
    kRequested,   // the receiver was asked; waits for its credit
    kBulk,        // has the credit; chunks go out in turn with those of other messages
  };

  Tag tag;
  Outgoing* hash_next = nullptr;
  State state = State::kEager;
  OperationInfo info;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t offset = 0;  // bytes that were written
  Token token;
};

// One message that this rank receives.
struct Incoming {
  enum class State : std::uint8_t {
    kPosted,     // the buffer waits, or is being filled
    kRequested,  // the sender asked, the buffer is not posted yet
    kStored,     // a whole eager message waits in the pool
  };

  Tag tag;
  Incoming* hash_next = nullptr;
  State state = State::kPosted;
  bool credited = false;  // the sender was told to send
  OperationInfo info;     // the receiver's own
  OperationInfo peer_info;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // of the buffer; of the message in kRequested and kStored
  std::size_t received = 0;
  std::byte* stored = nullptr;  // block of the pool
  std::size_t stored_bytes = 0;
  Token token;
};

// A frame without a message behind it, waiting for room.
struct Control {
  FrameType type = FrameType::kNotice;
  std::uint8_t flags = 0;
  Tag tag;
  OperationInfo info;
  std::uint64_t message_bytes = 0;
  std::string text;  // of a notice, encoded
};

// What all lanes of one transport share. Owned by the transport, outlives the lanes.
struct LaneShared {
  // A completion that the next hand-over takes; cancel() may still take it back.
  struct Pending {
    Completion completion;
    int peer = -1;
    std::uint64_t operation = 0;
  };

  int rank = -1;
  ObjectPool<Outgoing> outgoing;
  ObjectPool<Incoming> incoming;
  BlockPool blocks;
  std::vector<Pending> completions;
  std::vector<Notice> notices;
  std::vector<int> dead;
};

}  // namespace isthmus::shm
