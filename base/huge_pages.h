#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace isthmus {

// Huge pages for memory that is mapped already, private or shared: a page table entry and a TLB
// entry for 2 MiB where there were 512. Always optional: whoever asks goes on without.
//
// The kernel rewrites the pages at once, which takes about a millisecond a MiB, whatever the
// machine's settings for shared memory are (shmem_enabled is usually "never"). Other processes that
// map the file get the huge page too, at their next touch, where their mapping is aligned alike:
// file offset and address the same modulo kHugePageBytes. Contents stay, and may be used meanwhile.
// The new page lies on the NUMA node of most of the old ones: the owner of the memory, who touched
// it first, is the one to call. Any thread.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

constexpr std::size_t align_huge(std::size_t bytes) {
  return (bytes + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
}

// Makes [data, data + bytes) huge pages; what was never touched of them becomes zeroed memory in
// use. data and bytes are multiples of kHugePageBytes. Fails with kUnsupported where it can never
// succeed (kernels before 6.1, an unaligned mapping, a filter of system calls), else with kResource
// (no free huge page, or busy pages): then some pages may be huge.
Status collapse_huge_pages(std::byte* data, std::size_t bytes);

}  // namespace isthmus
