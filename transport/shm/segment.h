#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/result.h"
#include "transport/mapped.h"

namespace isthmus {

// Most groups of one rank alive at once; a block of each is 40 KiB of address space, touched on
// use.
inline constexpr std::uint32_t kGroupsMax = 1024;

// Ranks of one node that may read each other's memory by copies between processes.
inline constexpr std::size_t kPullRanksMax = 256;

inline constexpr std::uint64_t kSegmentMagic = 0x31534d4854534924ULL;

// First bytes of a rank's segment.
struct SegmentHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::int32_t rank = -1;
  std::int32_t world_size = 0;
  std::int32_t pid = 0;
  std::uint64_t token = 0;  // random: read by peers to prove that they map this very segment
  std::uint64_t probe = 0;  // address of a word of the rank's own memory that holds `token`
  std::uint64_t stage_offset = 0;
  std::uint64_t stage_bytes = 0;
  Bell bell;
  // Once `probed` is 1: by place among the node's ranks, whether this one can read its memory.
  std::array<std::atomic<std::uint64_t>, kPullRanksMax / 64> pulls{};
  std::atomic<std::uint32_t> probed{0};
  // Group keys by block index; 0 free. Written last when a group is joined (release).
  std::array<std::atomic<std::uint64_t>, kGroupsMax> groups;
};

// A contiguous piece of this rank's staging memory.
struct StageLease {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// One rank's shared memory: header, group blocks, staging. Created by its owner, mapped by the
// peers of its node. Anonymous (memfd, or an unnamed file in /dev/shm): nothing is left behind by
// any death. Thread rule: the engine's token; the memory itself follows mapped.h.
//
// Staging lies on its owner's NUMA node: its owner writes each page first, and nobody fills it
// beforehand. Where it is used often the owner turns it into huge pages, if it can have them.
class Segment {
 public:
  // Staging is handed out in chunks of this size.
  static constexpr std::size_t kChunkBytes = 256 << 10;
  static constexpr std::size_t kChunksMax = 4096;

  struct Options {
    int rank = 0;
    int world_size = 1;
    std::size_t stage_bytes = 32 << 20;
    bool named = false;     // an unnamed file in /dev/shm with reserved pages in place of memfd
    bool unshared = false;  // private memory: this rank alone uses it
  };

  static Result<Segment> create(const Options& options);

  // Maps a peer's segment and checks that it is what the peer says.
  static Result<Segment> attach(Fd fd, int rank, std::uint64_t token);

  const Fd& fd() const { return fd_; }

  SegmentHeader& header() const { return *header_; }

  GroupBlock& block(std::uint32_t index) const { return blocks_[index]; }

  std::byte* stage() const { return stage_; }

  std::size_t stage_bytes() const { return header_->stage_bytes; }

  // Finds the block of a group, null when its rank has not joined.
  GroupBlock* find_group(std::uint64_t key) const;

  // Owner: takes a free block, zeroes it, names it and publishes it.
  Result<GroupBlock*> join_group(std::uint64_t key, std::string_view name, std::uint32_t rank,
                                 std::uint32_t ranks);

  // Owner: makes a block free again. Only when no peer can still read it.
  void free_group(GroupBlock* block);

  // Owner: first fit. `spread` is for readers on other cores: small leases then move on until
  // kReuseBytes lie between two uses of the same lines. Else, and if large, a lease begins at the
  // lowest chunk, so that warm memory is used again. Empty when full.
  std::optional<StageLease> lease(std::size_t bytes, bool spread);
  void release(const StageLease& lease);

  std::size_t leased_bytes() const { return leased_.count() * kChunkBytes; }

  // How often the kernel had no huge page for staging that was worth one.
  std::uint64_t huge_refused() const { return huge_refused_; }

 private:
  // Lines that are still in first-level caches, the writer's and the readers', take up to 1.4 times
  // as long to write and read again as those that have left them.
  static constexpr std::size_t kReuseBytes = 256 << 10;
  static constexpr std::size_t kTurnsMax = 8;

  void place();
  void note_use(const StageLease& lease);

  // The first free run of `wanted` chunks from chunk `from` on.
  std::optional<StageLease> lease_from(std::size_t from, std::size_t wanted);

  Fd fd_;
  Mapping mapping_;
  SegmentHeader* header_ = nullptr;
  GroupBlock* blocks_ = nullptr;
  std::byte* stage_ = nullptr;
  std::bitset<kChunksMax> leased_;
  std::vector<std::uint16_t> uses_;  // by huge page of staging: leases, up to the deciding one
  std::uint64_t huge_refused_ = 0;
  std::size_t next_chunk_ = 0;  // after the last lease
  std::uint32_t next_block_ = 0;
};

}  // namespace isthmus
