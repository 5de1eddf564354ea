#include "kernels/copy.h"

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

}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(stream_blocks);

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
