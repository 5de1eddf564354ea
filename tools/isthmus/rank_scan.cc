#include "tools/isthmus/rank_scan.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/process.h"
#include "transport/mapped.h"
#include "transport/shm/segment.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;

// A stranger's file may look like a segment: no count from it is trusted beyond these.
constexpr int kWorldRanksMax = 1 << 20;
constexpr std::size_t kBlockHeadBytes = offsetof(GroupBlock, slots);

// A segment, whoever holds it open.
struct Found {
  Fd fd;
  int rank = -1;
  int pid = 0;  // of its owner, in the owner's namespace
  std::uint64_t blocks_offset = 0;
  std::uint64_t stage_offset = 0;
  std::uint64_t stage_bytes = 0;
  std::vector<std::uint64_t> keys;  // group keys by block index, 0 free
  std::vector<int> holders;         // processes that have it open
};

using FileKey = std::pair<dev_t, ino_t>;

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

bool read_at(const Fd& fd, void* to, std::size_t bytes, std::uint64_t offset) {
  std::byte* out = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd.get(), out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return false;
    }
    out += got;
    bytes -= static_cast<std::size_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

bool may_be_segment(const std::string& link) {
  return link.starts_with("/memfd:isthmus-rank") || link.starts_with("/dev/shm/#");
}

// Nothing when it is no segment of this version.
std::optional<Found> open_segment(const std::string& path, std::uint64_t bytes) {
  Found found;
  found.fd = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::unique_ptr<SegmentHeader> header = std::make_unique<SegmentHeader>();
  if (!found.fd.valid() || !read_at(found.fd, header.get(), sizeof *header, 0) ||
      header->magic != kSegmentMagic || header->version != kMappedVersion || header->rank < 0 ||
      header->rank >= kWorldRanksMax) {
    return std::nullopt;
  }
  constexpr std::uint64_t kBlocksBytes = std::uint64_t{kGroupsMax} * sizeof(GroupBlock);
  if (header->stage_offset < kBlocksBytes + sizeof(SegmentHeader) || header->stage_offset > bytes ||
      header->stage_bytes > bytes - header->stage_offset) {
    return std::nullopt;
  }
  found.rank = header->rank;
  found.pid = header->pid;
  found.blocks_offset = header->stage_offset - kBlocksBytes;
  found.stage_offset = header->stage_offset;
  found.stage_bytes = header->stage_bytes;
  for (const std::atomic<std::uint64_t>& key : header->groups) {
    found.keys.push_back(key.load(std::memory_order_relaxed));
  }
  return found;
}

std::string proc_path(int pid, std::string_view what) {
  return fmt::format("/proc/{}/{}", pid, what);
}

// Adds the segments that a process has open.
void scan_process(int pid, std::map<FileKey, Found>* segments) {
  std::error_code failure;  // Not ours, or gone meanwhile: nothing to see.
  for (fs::directory_iterator at(proc_path(pid, "fd"), failure), end; !failure && at != end;
       at.increment(failure)) {
    std::error_code unreadable;
    const std::string link = fs::read_symlink(at->path(), unreadable).string();

    struct stat info {};

    if (unreadable || !may_be_segment(link) || ::stat(at->path().c_str(), &info) != 0) {
      continue;
    }
    const FileKey key(info.st_dev, info.st_ino);
    auto place = segments->find(key);
    if (place == segments->end()) {
      std::optional<Found> found =
          open_segment(at->path().string(), static_cast<std::uint64_t>(info.st_size));
      if (!found) {
        continue;
      }
      place = segments->emplace(key, std::move(*found)).first;
    }
    std::vector<int>& holders = place->second.holders;
    if (std::find(holders.begin(), holders.end(), pid) == holders.end()) {
      holders.push_back(pid);
    }
  }
}

Result<std::map<FileKey, Found>> find_segments() {
  std::map<FileKey, Found> segments;
  std::error_code failure;
  fs::directory_iterator at("/proc", failure);
  if (failure) {
    return system_error(Code::kIo, failure.value(),
                        "cannot read /proc, where the processes of this machine are listed");
  }
  for (const fs::directory_iterator end; !failure && at != end; at.increment(failure)) {
    const std::optional<int> pid = number(at->path().filename().string());
    if (pid && *pid != ::getpid()) {
      scan_process(*pid, &segments);
    }
  }
  return segments;
}

// The owner's pid as seen from here: the holder that has this number, in its own namespace at
// least.
int owner_pid(const Found& found) {
  for (const int holder : found.holders) {
    if (holder == found.pid) {
      return holder;
    }
  }
  for (const int holder : found.holders) {
    std::ifstream status(proc_path(holder, "status"));
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("NSpid:")) {
        std::istringstream words(line.substr(6));
        int innermost = 0;
        for (int value = 0; words >> value;) {
          innermost = value;
        }
        if (innermost == found.pid) {
          return holder;
        }
      }
    }
  }
  return 0;
}

// Nothing of it may steer a terminal.
std::string printable(std::string text) {
  for (char& c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    c = byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return text;
}

template <std::size_t kSize>
std::string text_of(const std::array<char, kSize>& text) {
  return printable(std::string(text.data(), ::strnlen(text.data(), text.size())));
}

std::string phase_text(const RankState& state) {
  if (state.left.load(std::memory_order_relaxed) != 0) {
    return "left";
  }
  switch (state.phase.load(std::memory_order_relaxed)) {
    case kPhaseRunning:
      return "running";
    case kPhaseWaiting:
      return "waiting";
    case kPhaseFailed:
      return "failed";
    default:
      return "outside";
  }
}

RankInGroup member_of(const Found& found, const GroupBlock& block) {
  RankInGroup member;
  member.world_rank = found.rank;
  member.group_rank = static_cast<int>(block.rank);
  const int pid = owner_pid(found);
  member.pid = pid != 0 ? pid : found.pid;
  member.process = pid != 0 ? process_state(pid) : ProcessState::kDead;
  const RankState& state = block.state;
  member.phase = phase_text(state);
  member.finished = state.finished.load(std::memory_order_relaxed);
  member.sequence = member.finished;
  if (member.phase == "waiting" || member.phase == "failed") {
    member.sequence = state.sequence.load(std::memory_order_relaxed);
    member.step = state.step.load(std::memory_order_relaxed);
    member.waits_for = state.waits_for();
    const std::uint64_t since = state.since_ns.load(std::memory_order_relaxed);
    const std::int64_t now = monotonic_ns();
    if (since != 0 && since <= static_cast<std::uint64_t>(now)) {
      member.phase_ns = now - static_cast<std::int64_t>(since);
    }
  }
  const std::size_t ring = member.sequence % kAnnounceRing;
  const std::uint64_t announced = block.announcements[ring].key.load(std::memory_order_relaxed);
  const bool noted = block.infos[ring].signature != 0;
  member.has_operation =
      member.sequence != 0 && noted && (announced == 0 || (announced >> 32) <= member.sequence);
  member.operation = block.infos[ring];
  if ((block.failure.state.load(std::memory_order_relaxed) & 0xff) != 0) {
    member.failure = printable(block.failure.sentence());
  }
  return member;
}

// Bytes of the staging that are no hole of the file.
std::uint64_t used_bytes(const Found& found) {
  const off_t end = static_cast<off_t>(found.stage_offset + found.stage_bytes);
  off_t at = static_cast<off_t>(found.stage_offset);
  std::uint64_t used = 0;
  while (at < end) {
    const off_t data = ::lseek(found.fd.get(), at, SEEK_DATA);
    if (data < 0 || data >= end) {
      break;  // ENXIO: only a hole is left
    }
    const off_t hole = ::lseek(found.fd.get(), data, SEEK_HOLE);
    at = hole < 0 ? end : std::min(hole, end);
    used += static_cast<std::uint64_t>(at - data);
  }
  return used;
}

}  // namespace

Result<std::vector<StagingSeen>> scan_staging() {
  ISTHMUS_ASSIGN(const auto segments, find_segments());
  std::vector<StagingSeen> out;
  for (const auto& [file, found] : segments) {
    const int pid = owner_pid(found);
    out.push_back({.world_rank = found.rank,
                   .pid = pid != 0 ? pid : found.pid,
                   .bytes = found.stage_bytes,
                   .used_bytes = used_bytes(found)});
  }
  return out;
}

std::string_view process_state_name(ProcessState state) {
  constexpr std::array<std::string_view, 5> kNames = {"running", "sleeping", "stopped", "dead",
                                                      "unknown"};
  return kNames[static_cast<std::size_t>(state)];
}

Result<std::vector<GroupSeen>> scan_ranks() {
  ISTHMUS_ASSIGN(const auto segments, find_segments());
  // A key holds its job's random nonce: it names one group of one job, also where ranks share no
  // memory and no process has both segments open.
  std::map<std::pair<std::string, std::uint64_t>, GroupSeen> groups;
  // On the heap: a block's head alone is too large for a small stack.
  const std::unique_ptr<GroupBlock> block = std::make_unique<GroupBlock>();
  for (const auto& [file, found] : segments) {
    for (std::size_t index = 0; index < found.keys.size(); ++index) {
      const std::uint64_t key = found.keys[index];
      const std::uint64_t offset = found.blocks_offset + index * sizeof(GroupBlock);
      if (key == 0 || !read_at(found.fd, block.get(), kBlockHeadBytes, offset) ||
          block->key != key || block->rank >= block->ranks || block->ranks > kWorldRanksMax) {
        continue;
      }
      const std::string name = text_of(block->name);
      GroupSeen& group = groups[{name, key}];
      group.name = name;
      group.key = key;
      group.ranks = block->ranks;
      group.members.push_back(member_of(found, *block));
    }
  }
  std::vector<GroupSeen> out;
  for (auto& [place, group] : groups) {
    std::sort(
        group.members.begin(), group.members.end(),
        [](const RankInGroup& a, const RankInGroup& b) { return a.group_rank < b.group_rank; });
    out.push_back(std::move(group));
  }
  return out;
}

}  // namespace isthmus
