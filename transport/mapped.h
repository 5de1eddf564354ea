#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transport/endpoint.h"

namespace isthmus {

// Memory that all ranks of a node see: what shm/ maps and the engine reads and writes directly. The
// layout is shared between processes and frozen per kMappedVersion.

inline constexpr std::uint32_t kMappedVersion = 5;

// Announcements that a rank may be ahead of a peer within a group. A power of two.
inline constexpr std::uint32_t kAnnounceRing = 16;
inline constexpr std::size_t kLinePayloadBytes = 48;

// Small payloads live in the group itself. Slots are reused every kSlotRing operations.
inline constexpr std::uint32_t kSlotRing = 4;
inline constexpr std::size_t kSlotBytes = 8192;

// A rank's announcement of one operation: exactly one cache line, written once, read by all peers.
// `key` is written last (release): (sequence << 32) | signature. Sequence numbers start at 1.
struct alignas(64) Announcement {
  std::atomic<std::uint64_t> key{0};
  std::uint32_t stage = 0;     // see announced_stage()
  std::uint32_t finished = 0;  // every operation up to this sequence number is over for this rank
  std::array<std::byte, kLinePayloadBytes> payload{};
};

static_assert(sizeof(Announcement) == 64);

// Where an operation's staging begins, in cache lines, below the way in which its buffers are
// exposed (0: not at all): what all ranks must have in common before they read them.
inline constexpr std::uint32_t kExposureShift = 30;

constexpr std::uint32_t announced_stage(std::uint32_t exposure, std::size_t line) {
  return (exposure << kExposureShift) | static_cast<std::uint32_t>(line);
}

constexpr std::uint32_t stage_line(std::uint32_t stage) {
  return stage & ((1U << kExposureShift) - 1);
}

constexpr std::uint32_t stage_exposure(std::uint32_t stage) {
  return stage >> kExposureShift;
}

// The caller's buffers, in the payload of an announcement that exposes them: offsets in the rank's
// heap, or addresses in its process.
struct ExposedBuffers {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};

static_assert(sizeof(ExposedBuffers) <= kLinePayloadBytes);

constexpr std::uint64_t announce_key(std::uint32_t sequence, std::uint32_t signature) {
  return (static_cast<std::uint64_t>(sequence) << 32) | signature;
}

// A progress line holds (sequence << 32) | value: it only grows, so it never needs a reset.
struct alignas(64) ProgressLine {
  std::atomic<std::uint64_t> value{0};
};

// What a rank is doing, for error texts and `isthmus status`. Written by its owner when it waits
// longer than a spin, and at the end; read by anyone at any time: fields are only ever advisory.
struct alignas(64) RankState {
  static constexpr std::size_t kWaitsMax = 8;  // of the ranks it waits for, the first

  std::atomic<std::uint32_t> sequence{0};  // operation in progress or last done
  std::atomic<std::uint32_t> step{0};      // first step that waits
  std::atomic<std::uint64_t> since_ns{0};  // CLOCK_MONOTONIC of the last change
  std::atomic<std::uint32_t> phase{0};     // see RankPhase
  std::atomic<std::uint32_t> finished{0};  // every operation up to this one is over
  std::atomic<std::uint32_t> left{0};      // 1: the rank has left the group
  std::array<std::atomic<std::uint32_t>, kWaitsMax> waits{};  // world ranks + 1, 0 for none

  void set_waits(std::span<const int> world_ranks) {
    for (std::size_t i = 0; i < kWaitsMax; ++i) {
      const int rank = i < world_ranks.size() ? world_ranks[i] : -1;
      waits[i].store(static_cast<std::uint32_t>(rank + 1), std::memory_order_relaxed);
    }
  }

  std::vector<int> waits_for() const {
    std::vector<int> world_ranks;
    for (const std::atomic<std::uint32_t>& wait : waits) {
      const std::uint32_t value = wait.load(std::memory_order_relaxed);
      if (value != 0) {
        world_ranks.push_back(static_cast<int>(value) - 1);
      }
    }
    return world_ranks;
  }
};

static_assert(sizeof(RankState) == 64);

enum RankPhase : std::uint32_t {
  kPhaseOutside = 0,
  kPhaseRunning = 1,
  kPhaseWaiting = 2,
  kPhaseFailed = 3
};

// The failure of a group as told by one of its ranks to the others of the node. `state` is written
// last: (sequence << 8) | kind, 0 none. A refusal concerns one sequence number, a death all. A
// later failure takes the place of an earlier one while others read that: the writer clears `state`
// first and stores the rest with release, a reader loads the rest with acquire and then looks
// whether `state` is still the same.
struct alignas(64) FailureRecord {
  std::atomic<std::uint64_t> state{0};
  std::atomic<std::int32_t> culprit{-1};
  std::atomic<std::uint32_t> code{0};
  std::array<std::atomic<char>, kNoticeTextMax> text{};

  std::string sentence() const {
    std::string read;
    for (const std::atomic<char>& letter : text) {
      const char value = letter.load(std::memory_order_acquire);
      if (value == '\0') {
        break;
      }
      read.push_back(value);
    }
    return read;
  }
};

// A refusal in one word, by sequence number: (sequence << 32) | (code << 24) | (culprit + 1). Words
// of operations that peers have not finished are not written over, while FailureRecord keeps the
// sentence of the last one only.
using RefusedWord = std::atomic<std::uint64_t>;

constexpr std::uint64_t refused_word(std::uint32_t sequence, Code code, std::int32_t culprit) {
  return (static_cast<std::uint64_t>(sequence) << 32) | (static_cast<std::uint64_t>(code) << 24) |
         (static_cast<std::uint32_t>(culprit + 1) & 0xffffffU);
}

constexpr Code refused_code(std::uint64_t word) {
  return static_cast<Code>((word >> 24) & 0xff);
}

constexpr std::int32_t refused_culprit(std::uint64_t word) {
  return static_cast<std::int32_t>(word & 0xffffffU) - 1;
}

// One rank's part of one group, in that rank's segment: written by the owner only.
struct GroupBlock {
  std::array<Announcement, kAnnounceRing> announcements;
  std::array<std::array<ProgressLine, 3>, kAnnounceRing> progress;  // lines 1 to 3
  std::array<OperationInfo, kAnnounceRing> infos;                   // for texts: what was announced
  RankState state;
  FailureRecord failure;
  std::array<RefusedWord, kAnnounceRing> refused{};  // by sequence % kAnnounceRing
  std::array<char, 64> name;                         // of the group, for `isthmus status`
  std::uint64_t key = 0;                             // of the group, 0 while the block is free
  std::uint32_t ranks = 0;
  std::uint32_t rank = 0;
  alignas(4096) std::array<std::array<std::byte, kSlotBytes>, kSlotRing> slots;
};

// Set while a rank sleeps in poll(): a peer that publishes then writes to the sleeper's eventfd.
struct alignas(64) Bell {
  std::atomic<std::uint32_t> sleeping{0};
};

// A local rank of a group as another rank sees it.
struct MappedPeer {
  GroupBlock* block = nullptr;  // null until the peer has joined the group
  std::byte* stage = nullptr;   // base of its staging memory
  std::byte* heap = nullptr;    // of its memory for exposed buffers; null where it has none
  std::size_t heap_bytes = 0;
  Bell* bell = nullptr;
  int bell_fd = -1;  // eventfd of that rank; owned by the ShmNode
  int world_rank = -1;
  std::uint32_t finished = 0;  // every operation up to this one is over for it, as last heard
};

}  // namespace isthmus
