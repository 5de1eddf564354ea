#pragma once

#include <cstddef>

namespace isthmus {

// Asks for the cache lines of [data, data + bytes) in a writable state, so that a later store does
// not wait for other cores to give up their copies. A hint: any address is allowed.
inline void prefetch_for_write(const void* data, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const char* line = static_cast<const char*>(data);
  for (std::size_t offset = 0; offset < bytes; offset += kLine) {
#if defined(__x86_64__)
    // __builtin_prefetch(p, 1) is a plain read prefetch unless the compiler may assume PREFETCHW;
    // every x86-64 processor executes it, at worst as a no-op.
    asm volatile("prefetchw %0" : : "m"(line[offset]));
#else
    __builtin_prefetch(line + offset, 1);
#endif
  }
}

}  // namespace isthmus
