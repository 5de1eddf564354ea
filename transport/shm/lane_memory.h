#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/result.h"
#include "transport/mapped.h"

namespace isthmus {

// The memory that messages between ranks of one node go through. Each rank owns one file with a
// piece for every other rank of its node; a piece holds what its owner sends to that rank (cells
// and data) and how far the owner has read what that rank sends (the header). So every word has one
// writer, the owner. The layout is shared between processes and frozen per kMappedVersion.
//
// Pages are charged when touched: an unused piece costs nothing but address space.

inline constexpr std::uint32_t kLaneMagic = 0x4e4c5349;
inline constexpr std::uint32_t kLaneCells = 128;  // frames on the way; a power of two

// One frame: exactly one cache line. `word` is written last: it says that the frame is there.
struct alignas(64) LaneCell {
  std::atomic<std::uint64_t> word{0};  // 0 before the first lap
  std::uint64_t operation = 0;
  std::array<std::byte, kLinePayloadBytes> payload{};
};

static_assert(sizeof(LaneCell) == 64);

struct LaneHeader {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  std::int32_t from = -1;  // world rank of the owner
  std::int32_t to = -1;    // world rank that reads the cells
  std::uint32_t cells = 0;
  std::uint32_t data_bytes = 0;

  // Of the other direction: frames that the owner has read, and the eager bytes that have left its
  // pool (eager_cost() each). Both only grow.
  alignas(64) std::atomic<std::uint64_t> consumed{0};
  std::atomic<std::uint64_t> freed{0};

  // 1 while the owner waits for room in its cells or data: a reader that makes some then rings.
  alignas(64) std::atomic<std::uint32_t> blocked{0};
};

// Sizes of a piece: the more ranks on a node, the less data for each, so that a process that sends
// to all of them stays within kLaneDataTotal.
struct LaneGeometry {
  std::uint32_t data_bytes = 0;
  std::uint32_t chunk_bytes = 0;  // largest part of a message in one frame
  std::size_t stride = 0;         // bytes from piece to piece

  static LaneGeometry of(std::size_t local_ranks);
};

inline constexpr std::size_t kLaneDataTotal = std::size_t{4} << 20;
inline constexpr std::size_t kLaneDataMost = std::size_t{256} << 10;
inline constexpr std::size_t kLaneDataLeast = std::size_t{32} << 10;

// A mapped piece. Owns nothing.
struct LaneView {
  LaneHeader* header = nullptr;
  LaneCell* cells = nullptr;
  std::byte* data = nullptr;
  std::uint32_t data_bytes = 0;

  // A piece in memory of `geometry.stride` zero bytes, aligned to a cache line. Owner.
  static LaneView make(std::byte* memory, const LaneGeometry& geometry, int from, int to);

  // The same memory as its reader sees it; fails when it is not what it should be.
  static Result<LaneView> check(std::byte* memory, const LaneGeometry& geometry, int from, int to);
};

// One rank's file of pieces, its own or a peer's. Thread rule: the engine's token; the memory
// itself is written by its owner and read by one peer a piece.
class LaneMemory {
 public:
  // The file before it is known which ranks share the node: large enough for any of `ranks`, so
  // that a small /dev/shm shows while there is still a way around it.
  static Result<Fd> reserve(int rank, std::size_t ranks, bool named);

  // locals: the world ranks of the node in ascending order, with `rank`; file: of reserve().
  static Result<LaneMemory> create(int rank, std::span<const int> locals, Fd file);

  // Maps the file of `owner` and checks its piece for `reader`.
  static Result<LaneMemory> attach(Fd fd, int owner, int reader, std::span<const int> locals);

  const Fd& fd() const { return fd_; }

  // The owner's piece for `to`, after create().
  LaneView piece(int to, std::span<const int> locals) const;

  // The piece that attach() checked.
  const LaneView& mine() const { return mine_; }

 private:
  Fd fd_;
  Mapping mapping_;
  LaneGeometry geometry_;
  int owner_ = -1;
  LaneView mine_;
};

}  // namespace isthmus
