#include "transport/shm/segment.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/huge_pages.h"
#include "base/log.h"
#include "transport/shm/shared_file.h"

namespace isthmus {
namespace {

constexpr std::size_t kPage = 4096;

// Staging begins on a huge page, right behind the blocks; what is left free is before these, and
// costs only addresses.
constexpr std::size_t kBlocksBytes = kGroupsMax * sizeof(GroupBlock);
constexpr std::size_t kStageOffset = align_huge(sizeof(SegmentHeader) + kBlocksBytes);
constexpr std::size_t kBlocksOffset = kStageOffset - kBlocksBytes;

static_assert(sizeof(GroupBlock) % kPage == 0);
static_assert(kHugePageBytes % Segment::kChunkBytes == 0);

// Leases of a huge page's worth of staging before it becomes one, which takes a millisecond or two:
// little beside what so many operations took, and too much for the first of them.
constexpr std::uint16_t kUsesUntilHuge = 256;

}  // namespace

void Segment::place() {
  header_ = std::launder(reinterpret_cast<SegmentHeader*>(mapping_.data()));
  blocks_ = std::launder(reinterpret_cast<GroupBlock*>(mapping_.data() + kBlocksOffset));
}

Result<Segment> Segment::create(const Options& options) {
  const std::size_t stage_bytes =
      std::min(options.stage_bytes / kChunkBytes, kChunksMax) * kChunkBytes;
  const std::size_t bytes = kStageOffset + stage_bytes;
  Segment segment;
  if (options.unshared) {
    ISTHMUS_ASSIGN(segment.mapping_, Mapping::create_private(bytes));
  } else {
    ISTHMUS_ASSIGN(segment.fd_, make_shared_file(fmt::format("isthmus-rank-{}", options.rank),
                                                 bytes, options.named));
    ISTHMUS_ASSIGN(segment.mapping_,
                   Mapping::create_aligned(segment.fd_, bytes, true, kHugePageBytes));
    segment.uses_.resize(stage_bytes / kHugePageBytes);
  }
  // Fresh pages are zero: only what differs from zero is written. Blocks are made on joining.
  new (segment.mapping_.data()) SegmentHeader{};
  segment.place();
  SegmentHeader& header = *segment.header_;
  if (::getrandom(&header.token, sizeof header.token, 0) != sizeof header.token) {
    return system_error(Code::kIo, errno, "cannot draw a random token");
  }
  header.version = kMappedVersion;
  header.rank = options.rank;
  header.world_size = options.world_size;
  header.pid = ::getpid();
  header.stage_offset = kStageOffset;
  header.stage_bytes = stage_bytes;
  header.magic = kSegmentMagic;
  segment.stage_ = segment.mapping_.data() + kStageOffset;
  return segment;
}

Result<Segment> Segment::attach(Fd fd, int rank, std::uint64_t token) {
  struct stat info {};

  if (::fstat(fd.get(), &info) != 0) {
    return system_error(Code::kIo, errno, fmt::format("cannot stat the segment of rank {}", rank));
  }
  const std::size_t bytes = static_cast<std::size_t>(info.st_size);
  if (bytes < kStageOffset) {
    return Error{.code = Code::kProtocol,
                 .culprit = rank,
                 .message = fmt::format("segment of rank {} has {} bytes, expected at least {}",
                                        rank, bytes, kStageOffset)};
  }
  Segment segment;
  segment.fd_ = std::move(fd);
  // Aligned as its owner's, so that huge pages are huge here too.
  ISTHMUS_ASSIGN(segment.mapping_,
                 Mapping::create_aligned(segment.fd_, bytes, true, kHugePageBytes));
  segment.place();
  const SegmentHeader& header = *segment.header_;
  if (header.magic != kSegmentMagic || header.version != kMappedVersion || header.rank != rank ||
      header.token != token || header.stage_offset != kStageOffset ||
      header.stage_bytes > bytes - kStageOffset) {
    return Error{.code = Code::kProtocol,
                 .culprit = rank,
                 .message = fmt::format("segment of rank {} is not what it announced: version {} "
                                        "(ours {}), rank {}; do all ranks run the same isthmus?",
                                        rank, header.version, kMappedVersion, header.rank)};
  }
  segment.stage_ = segment.mapping_.data() + kStageOffset;
  return segment;
}

GroupBlock* Segment::find_group(std::uint64_t key) const {
  for (std::uint32_t i = 0; i < kGroupsMax; ++i) {
    if (header_->groups[i].load(std::memory_order_acquire) == key) {
      return &blocks_[i];
    }
  }
  return nullptr;
}

Result<GroupBlock*> Segment::join_group(std::uint64_t key, std::string_view name,
                                        std::uint32_t rank, std::uint32_t ranks) {
  for (std::uint32_t tries = 0; tries < kGroupsMax; ++tries) {
    const std::uint32_t index = (next_block_ + tries) % kGroupsMax;
    if (header_->groups[index].load(std::memory_order_relaxed) != 0) {
      continue;
    }
    GroupBlock* block = new (&blocks_[index]) GroupBlock;
    block->key = key;
    block->rank = rank;
    block->ranks = ranks;
    block->name.fill('\0');
    std::memcpy(block->name.data(), name.data(), std::min(name.size(), block->name.size() - 1));
    header_->groups[index].store(key, std::memory_order_release);
    next_block_ = (index + 1) % kGroupsMax;
    return block;
  }
  return Error{
      .code = Code::kResource,
      .message = fmt::format("cannot create group '{}': {} groups are alive, the limit is {}; "
                             "destroy some",
                             name, kGroupsMax, kGroupsMax)};
}

void Segment::free_group(GroupBlock* block) {
  const std::size_t index = static_cast<std::size_t>(block - blocks_);
  header_->groups[index].store(0, std::memory_order_release);
}

std::optional<StageLease> Segment::lease(std::size_t bytes, bool spread) {
  const std::size_t wanted = std::max<std::size_t>((bytes + kChunkBytes - 1) / kChunkBytes, 1);
  // So many leases in turn, then the first again.
  const std::size_t turns =
      !spread || bytes > kReuseBytes
          ? 1
          : 1 + std::min(kReuseBytes / std::max<std::size_t>(bytes, 1), kTurnsMax);
  const std::size_t from = next_chunk_ < turns ? next_chunk_ : 0;
  std::optional<StageLease> lease = lease_from(from, wanted);
  if (!lease && from > 0) {
    lease = lease_from(0, wanted);
  }
  if (lease) {
    next_chunk_ = lease->offset / kChunkBytes + wanted;
  }
  return lease;
}

std::optional<StageLease> Segment::lease_from(std::size_t from, std::size_t wanted) {
  const std::size_t chunks = header_->stage_bytes / kChunkBytes;
  std::size_t run = 0;
  for (std::size_t i = from; i < chunks; ++i) {
    run = leased_.test(i) ? 0 : run + 1;
    if (run == wanted) {
      const std::size_t first = i + 1 - wanted;
      for (std::size_t k = first; k <= i; ++k) {
        leased_.set(k);
      }
      const StageLease lease{.offset = first * kChunkBytes, .bytes = wanted * kChunkBytes};
      note_use(lease);
      return lease;
    }
  }
  return std::nullopt;
}

// Huge pages for staging that is used again and again, one at most an operation.
void Segment::note_use(const StageLease& lease) {
  const std::size_t end =
      std::min((lease.offset + lease.bytes + kHugePageBytes - 1) / kHugePageBytes, uses_.size());
  for (std::size_t page = lease.offset / kHugePageBytes; page < end; ++page) {
    if (uses_[page] == kUsesUntilHuge) {
      continue;
    }
    ++uses_[page];
    if (uses_[page] < kUsesUntilHuge) {
      continue;
    }
    const Status made = collapse_huge_pages(stage_ + page * kHugePageBytes, kHugePageBytes);
    if (!made.ok()) {
      ++huge_refused_;
      log(LogLevel::kDebug, "shm", "staging keeps small pages: {}", made.error().message);
      if (made.error().code == Code::kUnsupported) {
        uses_.clear();  // no page ever will
      }
    }
    return;
  }
}

void Segment::release(const StageLease& lease) {
  for (std::size_t k = 0; k < lease.bytes / kChunkBytes; ++k) {
    leased_.reset(lease.offset / kChunkBytes + k);
  }
}

}  // namespace isthmus
