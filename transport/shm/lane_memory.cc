#include "transport/shm/lane_memory.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>

#include "transport/shm/shared_file.h"

namespace isthmus {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kCellsOffset = 256;
constexpr std::size_t kDataOffset =
    (kCellsOffset + kLaneCells * sizeof(LaneCell) + kPage - 1) / kPage * kPage;
// Chunks that the data of a piece holds, so that both sides copy at once.
constexpr std::uint32_t kChunks = 4;

static_assert(sizeof(LaneHeader) <= kCellsOffset);

// A file has no piece for its owner.
std::size_t piece_index(int owner, int reader, std::span<const int> locals) {
  const auto at = std::lower_bound(locals.begin(), locals.end(), reader) - locals.begin();
  return static_cast<std::size_t>(at - (reader > owner ? 1 : 0));
}

LaneView place(std::byte* memory, const LaneGeometry& geometry) {
  return {.header = std::launder(reinterpret_cast<LaneHeader*>(memory)),
          .cells = std::launder(reinterpret_cast<LaneCell*>(memory + kCellsOffset)),
          .data = memory + kDataOffset,
          .data_bytes = geometry.data_bytes};
}

}  // namespace

LaneGeometry LaneGeometry::of(std::size_t local_ranks) {
  const std::size_t share = std::bit_floor(kLaneDataTotal / std::max<std::size_t>(local_ranks, 1));
  LaneGeometry geometry;
  geometry.data_bytes =
      static_cast<std::uint32_t>(std::clamp(share, kLaneDataLeast, kLaneDataMost));
  geometry.chunk_bytes = geometry.data_bytes / kChunks;
  geometry.stride = kDataOffset + geometry.data_bytes;
  return geometry;
}

LaneView LaneView::make(std::byte* memory, const LaneGeometry& geometry, int from, int to) {
  // Fresh pages are zero, which is what cells begin with: they stay untouched until used.
  new (memory) LaneHeader{};
  const LaneView view = place(memory, geometry);
  view.header->version = kMappedVersion;
  view.header->from = from;
  view.header->to = to;
  view.header->cells = kLaneCells;
  view.header->data_bytes = geometry.data_bytes;
  view.header->magic = kLaneMagic;
  return view;
}

Result<LaneView> LaneView::check(std::byte* memory, const LaneGeometry& geometry, int from,
                                 int to) {
  const LaneView view = place(memory, geometry);
  const LaneHeader& header = *view.header;
  if (header.magic != kLaneMagic || header.version != kMappedVersion || header.from != from ||
      header.to != to || header.cells != kLaneCells || header.data_bytes != geometry.data_bytes) {
    return Error{.code = Code::kProtocol,
                 .culprit = from,
                 .message = fmt::format(
                     "the lane of rank {} to rank {} is not what was expected: version {} (ours "
                     "{}), from {} to {}, {} cells, {} data bytes (ours {} and {}); do all ranks "
                     "run the same isthmus?",
                     from, to, header.version, kMappedVersion, header.from, header.to, header.cells,
                     header.data_bytes, kLaneCells, geometry.data_bytes)};
  }
  return view;
}

// Beyond kLaneDataTotal / kLaneDataLeast ranks on one node the file grows when they are known.
Result<Fd> LaneMemory::reserve(int rank, std::size_t ranks, bool named) {
  std::size_t bytes = 0;
  for (std::size_t locals = 2; locals <= std::min(ranks, kLaneDataTotal / kLaneDataLeast);
       ++locals) {
    bytes = std::max(bytes, LaneGeometry::of(locals).stride * (locals - 1));
  }
  return make_shared_file(fmt::format("isthmus-lanes-{}", rank), bytes, named);
}

Result<LaneMemory> LaneMemory::create(int rank, std::span<const int> locals, Fd file) {
  LaneMemory memory;
  memory.owner_ = rank;
  memory.geometry_ = LaneGeometry::of(locals.size());
  if (locals.size() < 2) {
    return memory;
  }
  const std::size_t bytes = memory.geometry_.stride * (locals.size() - 1);
  ISTHMUS_TRY(resize_shared_file(file, bytes));
  memory.fd_ = std::move(file);
  ISTHMUS_ASSIGN(memory.mapping_, Mapping::create(memory.fd_, bytes, true));
  for (const int to : locals) {
    if (to != rank) {
      const std::size_t index = piece_index(rank, to, locals);
      LaneView::make(memory.mapping_.data() + index * memory.geometry_.stride, memory.geometry_,
                     rank, to);
    }
  }
  return memory;
}

Result<LaneMemory> LaneMemory::attach(Fd fd, int owner, int reader, std::span<const int> locals) {
  struct stat info {};

  if (::fstat(fd.get(), &info) != 0) {
    return system_error(Code::kIo, errno, fmt::format("cannot stat the lanes of rank {}", owner));
  }
  LaneMemory memory;
  memory.owner_ = owner;
  memory.geometry_ = LaneGeometry::of(locals.size());
  const std::size_t bytes = memory.geometry_.stride * (locals.size() - 1);
  if (static_cast<std::size_t>(info.st_size) != bytes) {
    return Error{.code = Code::kProtocol,
                 .culprit = owner,
                 .message = fmt::format("the lanes of rank {} have {} bytes, expected {} for {} "
                                        "ranks on this node",
                                        owner, info.st_size, bytes, locals.size())};
  }
  // Read-only: every word has one writer, the owner.
  ISTHMUS_ASSIGN(memory.mapping_, Mapping::create(fd, bytes, false));
  const std::size_t index = piece_index(owner, reader, locals);
  ISTHMUS_ASSIGN(memory.mine_,
                 LaneView::check(memory.mapping_.data() + index * memory.geometry_.stride,
                                 memory.geometry_, owner, reader));
  return memory;
}

LaneView LaneMemory::piece(int to, std::span<const int> locals) const {
  return place(mapping_.data() + piece_index(owner_, to, locals) * geometry_.stride, geometry_);
}

}  // namespace isthmus
