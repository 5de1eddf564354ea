#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/endpoint.h"
#include "transport/message_pools.h"
#include "transport/tcp/chunk_set.h"

namespace isthmus::tcp {

// What a lane remembers about messages: posts, early credits and what came unexpectedly.
// Thread rule: the transport's.

// In Outgoing::flows: no flow has the chunk.
inline constexpr std::uint8_t kNoFlow = 255;

// One message that this rank sends.
struct Outgoing {
  enum class State : std::uint8_t {
    kCreditOnly,  // the receiver is ready, the message is not posted yet
    kEager,       // goes without asking
    kRequested,   // the receiver was asked; waits for its credit
    kBulk,        // has the credit; chunks go out in turn with those of other messages
  };

  Tag tag;
  Outgoing* hash_next = nullptr;
  State state = State::kEager;
  bool queued = false;            // in one of the lane's output queues
  std::uint32_t frames = 0;       // of it in the writer, not yet written
  std::uint32_t chunk = 0;        // number of the next chunk
  std::uint32_t chunk_bytes = 0;  // of all chunks but the last; set with the first
  OperationInfo info;
  bool wants_ack = false;            // of a bulk message: done when the receiver says so
  std::vector<std::uint8_t> flows;   // by chunk: number of the flow that took it; with several
  std::vector<std::uint32_t> again;  // chunks that were lost with their flow
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t offset = 0;  // bytes that were put in frames
  Token token;
};

// One message that this rank receives.
struct Incoming {
  enum class State : std::uint8_t {
    kPosted,     // the buffer waits, or is being filled
    kRequested,  // the sender asked, the buffer is not posted yet
    kStoring,    // an eager message is being read into the pool
    kStored,     // a whole eager message waits in the pool
  };

  Tag tag;
  Incoming* hash_next = nullptr;
  State state = State::kPosted;
  bool credited = false;          // the sender was told to send
  bool posted = false;            // `data` and `token` are set; always so in kPosted
  std::uint64_t chunk_bytes = 0;  // of all chunks but the last; 0 while unknown
  ChunkSet chunks;
  bool wants_ack = false;
  OperationInfo info;  // the receiver's own
  OperationInfo peer_info;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // of the buffer; of the message in kRequested
  std::size_t received = 0;
  std::size_t stored_bytes = 0;
  std::byte* stored = nullptr;  // block of the pool
  Token token;
};

}  // namespace isthmus::tcp
