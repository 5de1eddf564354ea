#include "kernels/copy.h"

#include <algorithm>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/copy.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {

// dst is aligned to 64 bytes and bytes is a multiple of 256.
void stream_blocks(std::uint8_t* dst, const std::uint8_t* src, std::size_t bytes) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(dst, src, bytes);
#else
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<std::uint8_t> tag;
  constexpr std::size_t kLanes = hn::MaxLanes(tag);
  for (std::size_t i = 0; i < bytes; i += 4 * kLanes) {
    const auto v0 = hn::LoadU(tag, src + i);
    const auto v1 = hn::LoadU(tag, src + i + kLanes);
    const auto v2 = hn::LoadU(tag, src + i + 2 * kLanes);
    const auto v3 = hn::LoadU(tag, src + i + 3 * kLanes);
    hn::Stream(v0, tag, dst + i);
    hn::Stream(v1, tag, dst + i + kLanes);
    hn::Stream(v2, tag, dst + i + 2 * kLanes);
    hn::Stream(v3, tag, dst + i + 3 * kLanes);
  }
  hwy::FlushStream();
#endif
}

// Reading, and writing where the processor knows the difference.
HWY_INLINE void ask_for(std::uint8_t* dst, const std::uint8_t* src) {
#if HWY_ARCH_X86
  __asm__ volatile("prefetchw %0" : : "m"(*dst));  // where it is unknown it does nothing
#else
  __builtin_prefetch(dst, 1, 3);
#endif
  __builtin_prefetch(src, 0, 3);
}

void copy_ahead(std::uint8_t* dst, const std::uint8_t* src, std::size_t bytes) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(dst, src, bytes);
#else
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<std::uint8_t> tag;
  constexpr std::size_t kLanes = hn::MaxLanes(tag);
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kBlock = 4 * kLine;
  constexpr std::size_t kAhead = 16 * kLine;
  static_assert(kBlock % kLanes == 0);
  for (std::size_t i = 0; i < std::min(bytes, kAhead); i += kLine) {
    ask_for(dst + i, src + i);
  }
  std::size_t i = 0;
  for (; i + kBlock <= bytes; i += kBlock) {
    // Not beyond the end: what follows may be another slot, which the other rank reads.
    for (std::size_t k = 0; k < kBlock && i + k + kAhead < bytes; k += kLine) {
      ask_for(dst + i + k + kAhead, src + i + k + kAhead);
    }
    for (std::size_t k = 0; k < kBlock; k += kLanes) {
      hn::StoreU(hn::LoadU(tag, src + i + k), tag, dst + i + k);
    }
  }
  std::memcpy(dst + i, src + i, bytes - i);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(stream_blocks);
HWY_EXPORT(copy_ahead);

void copy_bytes_ahead(void* dst, const void* src, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(copy_ahead)
  (static_cast<std::uint8_t*>(dst), static_cast<const std::uint8_t*>(src), bytes);
}

void copy_bytes_streaming(void* dst, const void* src, std::size_t bytes) {
  if (bytes < kStreamingBytesMin) {
    copy_bytes(dst, src, bytes);
    return;
  }
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kBlock = 4 * kLine;
  std::uint8_t* to = static_cast<std::uint8_t*>(dst);
  const std::uint8_t* from = static_cast<const std::uint8_t*>(src);
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t body = (bytes - head) / kBlock * kBlock;
  copy_bytes(to, from, head);
  HWY_DYNAMIC_DISPATCH(stream_blocks)(to + head, from + head, body);
  copy_bytes(to + head + body, from + head + body, bytes - head - body);
}

}  // namespace isthmus
#endif
