#include "transport/shm/shared_heap.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/huge_pages.h"

namespace isthmus {
namespace {

constexpr std::size_t align(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

// A core dump would give every hole of the file memory.
Status leave_out_of_dumps(const Mapping& mapping) {
  if (::madvise(mapping.data(), mapping.size(), MADV_DONTDUMP) != 0) {
    return system_error(Code::kResource, errno, "cannot leave a shared heap out of core dumps");
  }
  return {};
}

}  // namespace

Result<SharedHeap> SharedHeap::create(int rank, std::size_t bytes) {
  SharedHeap heap;
  const std::size_t whole = align(bytes, kHugePage);
  heap.fd_ = Fd(
      static_cast<int>(::memfd_create(fmt::format("isthmus-heap-{}", rank).c_str(), MFD_CLOEXEC)));
  if (!heap.fd_.valid() || ::ftruncate(heap.fd_.get(), static_cast<off_t>(whole)) != 0) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot make a shared heap of {} bytes", whole));
  }
  ISTHMUS_ASSIGN(heap.mapping_, Mapping::create_aligned(heap.fd_, whole, true, kHugePage));
  ISTHMUS_TRY(leave_out_of_dumps(heap.mapping_));
  heap.gaps_[0] = whole;
  return heap;
}

Result<SharedHeap> SharedHeap::attach(Fd fd, int rank) {
  struct stat info {};

  if (::fstat(fd.get(), &info) != 0) {
    return system_error(Code::kIo, errno, fmt::format("cannot stat the heap of rank {}", rank));
  }
  SharedHeap heap;
  heap.fd_ = std::move(fd);
  ISTHMUS_ASSIGN(
      heap.mapping_,
      Mapping::create_aligned(heap.fd_, static_cast<std::size_t>(info.st_size), true, kHugePage));
  ISTHMUS_TRY(leave_out_of_dumps(heap.mapping_));
  return heap;
}

std::byte* SharedHeap::take(std::size_t bytes) {
  const std::size_t step = bytes >= kHugePage ? kHugePage : kPage;
  const std::size_t wanted = align(bytes, kPage);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto [offset, length] = *gap;
    const std::size_t begin = align(offset, step);
    if (begin - offset > length || length - (begin - offset) < wanted) {
      continue;
    }
    gaps_.erase(gap);
    if (begin > offset) {
      gaps_[offset] = begin - offset;
    }
    if (begin + wanted < offset + length) {
      gaps_[begin + wanted] = offset + length - begin - wanted;
    }
    std::byte* const data = mapping_.data() + begin;
    if (step == kHugePage) {
      // Without huge pages the block serves as well. By the owner, so that they are of its node.
      static_cast<void>(::madvise(data, wanted, MADV_HUGEPAGE));
      static_cast<void>(collapse_huge_pages(data, wanted / kHugePage * kHugePage));
    }
    return data;
  }
  return nullptr;
}

void SharedHeap::give_back(std::byte* data, std::size_t bytes) {
  ISTHMUS_CHECK(contains(data, bytes), "a block of this heap");
  std::size_t begin = static_cast<std::size_t>(data - mapping_.data());
  std::size_t length = align(bytes, kPage);
  // Where the system refuses, the memory is kept for the next block that lies here.
  static_cast<void>(::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(begin), static_cast<off_t>(length)));
  auto next = gaps_.lower_bound(begin);
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      length += before->second;
      gaps_.erase(before);
    }
  }
  if (next != gaps_.end() && begin + length == next->first) {
    length += next->second;
    gaps_.erase(next);
  }
  gaps_[begin] = length;
}

}  // namespace isthmus
