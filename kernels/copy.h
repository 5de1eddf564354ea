#pragma once

#include <cstddef>
#include <cstring>

namespace isthmus {

// Copies that the engine's Copy steps use. dst and src do not overlap; bytes may be 0. Pure
// functions on the caller's memory, any thread.

namespace copy_detail {

// kBytes <= bytes <= 2 * kBytes: the two halves overlap as needed, both are read before one is
// written.
template <std::size_t kBytes>
inline void copy_two(char* dst, const char* src, std::size_t bytes) {
  char first[kBytes];
  char last[kBytes];
  std::memcpy(first, src, kBytes);
  std::memcpy(last, src + bytes - kBytes, kBytes);
  std::memcpy(dst, first, kBytes);
  std::memcpy(dst + bytes - kBytes, last, kBytes);
}

}  // namespace copy_detail

// For memory that another core has touched last: asks for the lines that it will write, for
// writing, and for those that it will read, 1 KiB ahead. Such a line takes 100 to 300 ns to come, a
// store does not ask for it early enough, and the processor's own prefetching stays within a page.
void copy_bytes_ahead(void* dst, const void* src, std::size_t bytes);

// From so many bytes on copies ask ahead.
inline constexpr std::size_t kAheadBytesMin = 512;

// memcpy whose short copies (up to 64 bytes, the payload of one cache line) need no call, and whose
// long ones ask ahead.
inline void copy_bytes(void* dst, const void* src, std::size_t bytes) {
  char* to = static_cast<char*>(dst);
  const char* from = static_cast<const char*>(src);
  if (bytes > 64) [[unlikely]] {
    if (bytes >= kAheadBytesMin) {
      copy_bytes_ahead(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  } else if (bytes > 32) {
    copy_detail::copy_two<32>(to, from, bytes);
  } else if (bytes > 16) {
    copy_detail::copy_two<16>(to, from, bytes);
  } else if (bytes >= 8) {
    copy_detail::copy_two<8>(to, from, bytes);
  } else if (bytes >= 4) {
    copy_detail::copy_two<4>(to, from, bytes);
  } else if (bytes >= 2) {
    copy_detail::copy_two<2>(to, from, bytes);
  } else if (bytes == 1) {
    *to = *from;
  }
}

// The same with stores that bypass the caches, for copies so large that the destination would not
// stay in them. Below kStreamingBytesMin it is copy_bytes. Ends with a store fence: what the caller
// publishes afterwards is seen after the data.
inline constexpr std::size_t kStreamingBytesMin = 16384;

// Bytes that all ranks of a node write as their results in one operation, from which what they copy
// there out of shared memory is streamed: no cache would hold it, and ordinary stores would read
// every line first. Below, the reader of the result finds it in its cache.
inline constexpr std::size_t kStreamingFootprint = std::size_t{128} << 20;
void copy_bytes_streaming(void* dst, const void* src, std::size_t bytes);

}  // namespace isthmus
