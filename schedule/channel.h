#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "schedule/run.h"
#include "transport/endpoint.h"
#include "transport/mapped.h"
#include "transport/shm/segment.h"

namespace isthmus {

// Operations of one channel that may be active at once: those of a rank that has not finished n
// must not reuse the announcement line of n - kAnnounceRing.
inline constexpr std::uint32_t kActiveMax = kAnnounceRing;

// A group of ranks as the engine sees it: who is in it, how each is reached, sequence numbers and
// the failure that ended it. Filled by collectives/, used under the engine's token.
struct Channel {
  std::uint64_t key = 0;  // of the group, equal on all members
  std::string name;
  std::uint32_t rank = 0;
  std::uint32_t local = 0;           // index of this rank in `peers`
  std::vector<int> world_ranks;      // by group rank
  std::vector<MappedPeer> peers;     // by local index, this rank included
  GroupBlock* own = nullptr;         // this rank's block
  bool resolved = false;             // every peer's block is known
  std::vector<Endpoint*> endpoints;  // by group rank, null until first used

  std::uint32_t next_sequence = 1;
  std::uint32_t finished = 0;        // every operation up to this one is over here
  std::uint64_t finished_above = 0;  // bit i: operation finished + 1 + i is over too
  std::uint32_t peers_finished = 0;  // every local peer has finished up to this one, at the least
  std::deque<Run*> pending;          // issued, not begun

  // Staging that peers may still read: free once they have finished `sequence`.
  struct Retired {
    StageLease lease;
    std::uint32_t sequence = 0;
  };

  std::vector<Retired> retired;

  // Operations that a peer refused before they began here.
  struct Refusal {
    std::uint32_t sequence = 0;
    Error error;
  };

  std::deque<Refusal> refused;  // at most kActiveMax, oldest dropped

  // Messages so far of a (tag, group rank, direction): the n-th of a sender meets the n-th of its
  // receiver.
  std::unordered_map<std::uint64_t, std::uint32_t> messages;

  // The plan by messages for a run whose ranks do not all expose their buffers alike. Set once, by
  // the group; called under the engine's token.
  std::function<Result<std::shared_ptr<const Plan>>(const Run&)> by_messages;

  std::uint32_t& messages_of(std::uint32_t tag, std::uint32_t peer, bool is_recv) {
    return messages[(static_cast<std::uint64_t>(tag) << 32) |
                    (static_cast<std::uint64_t>(peer) << 1) | (is_recv ? 1U : 0U)];
  }

  std::uint32_t any_source_from = 0;  // group rank at which the next search for a sender begins

  // Sends that were done here when their receiver refused them, by its group rank: the next
  // transfer with it says so. One a peer is kept, the first.
  std::map<std::uint32_t, Error> refused_sends;

  // What another rank last said it waits for, by its group rank: to tell the guilty from the
  // waiting.
  struct Waiting {
    std::uint32_t sequence = 0;
    std::vector<int> waits_for;  // world ranks
  };

  std::vector<Waiting> waiting;

  // Of GroupBlock::refused and FailureRecord::state, by local index: what was handled.
  struct Seen {
    std::uint64_t failure = 0;
    std::array<std::uint64_t, kAnnounceRing> refused{};
  };

  std::vector<Seen> seen_failures;
  std::shared_ptr<const Error> failure;  // set once: the group is over; shared with callers' errors
  std::atomic<std::int64_t> timeout_ms{0};
  std::atomic<std::uint64_t> issued{0};

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(world_ranks.size()); }

  std::uint32_t id() const { return static_cast<std::uint32_t>(key ^ (key >> 32)); }

  int world_rank() const { return world_ranks[rank]; }
};

}  // namespace isthmus
