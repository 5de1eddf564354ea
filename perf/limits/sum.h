#pragma once

#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace isthmus::limits {

constexpr std::size_t kLine = 64;
constexpr std::size_t kLineFloats = kLine / sizeof(float);

#if defined(__AVX512F__)
constexpr std::size_t kPartBytes = 64;
#elif defined(__AVX__)
constexpr std::size_t kPartBytes = 32;
#else
constexpr std::size_t kPartBytes = 16;
#endif
typedef float Part __attribute__((vector_size(kPartBytes), aligned(4), may_alias));

// A line in as many registers as this machine takes.
struct Vector {
  static constexpr std::size_t kParts = kLine / kPartBytes;
  Part part[kParts];

  Vector& operator+=(const Vector& other) {
    for (std::size_t i = 0; i < kParts; ++i) {
      part[i] += other.part[i];
    }
    return *this;
  }
};

inline Vector load(const float* from) {
  Vector vector;
  for (std::size_t i = 0; i < Vector::kParts; ++i) {
    vector.part[i] = *reinterpret_cast<const Part*>(from + i * (kPartBytes / sizeof(float)));
  }
  return vector;
}

inline void store(float* to, const Vector& vector) {
  for (std::size_t i = 0; i < Vector::kParts; ++i) {
    *reinterpret_cast<Part*>(to + i * (kPartBytes / sizeof(float))) = vector.part[i];
  }
}

// Stores past the caches; `to` is aligned to a line.
inline void stream(float* to, const Vector& vector) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < Vector::kParts; ++i) {
    float* const at = to + i * (kPartBytes / sizeof(float));
#if defined(__AVX512F__)
    _mm512_stream_ps(at, reinterpret_cast<__m512>(vector.part[i]));
#elif defined(__AVX__)
    _mm256_stream_ps(at, reinterpret_cast<__m256>(vector.part[i]));
#else
    _mm_stream_ps(at, reinterpret_cast<__m128>(vector.part[i]));
#endif
  }
#else
  store(to, vector);
#endif
}

// Moves a line towards the shared cache; a hint that processors without it ignore.
inline void demote(const void* line) {
#if defined(__x86_64__)
  asm volatile(".byte 0x0f, 0x1c, 0x07" : : "D"(line) : "memory");
#else
  (void)line;
#endif
}

// Asks for a line in order to write it.
inline void want(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// to[i] = the sum of the `many` sources in their order, also stored in `also` unless null.
inline void sum(float* to, const float* const* from, int many, std::size_t count, float* also,
                int prefetch_lines) {
  std::size_t i = 0;
  for (; i + kLineFloats <= count; i += kLineFloats) {
    if (prefetch_lines != 0) {
      for (int k = 0; k < many; ++k) {
        __builtin_prefetch(from[k] + i + static_cast<std::size_t>(prefetch_lines) * kLineFloats);
      }
    }
    Vector v = load(from[0] + i);
    for (int k = 1; k < many; ++k) {
      v += load(from[k] + i);
    }
    store(to + i, v);
    if (also != nullptr) {
      store(also + i, v);
    }
  }
  for (; i < count; ++i) {
    float x = from[0][i];
    for (int k = 1; k < many; ++k) {
      x += from[k][i];
    }
    to[i] = x;
    if (also != nullptr) {
      also[i] = x;
    }
  }
}

// to[i] += from[i], taking a line of each of `pages` consecutive pages in turn: several streams
// keep more reads of another core's cache in flight than one. For whole lines of both.
inline std::size_t add_pages(float* to, const float* from, std::size_t pages, std::size_t count) {
  constexpr std::size_t kPageFloats = 4096 / sizeof(float);
  std::size_t i = 0;
  for (; i + pages * kPageFloats <= count; i += pages * kPageFloats) {
    for (std::size_t j = 0; j < kPageFloats; j += kLineFloats) {
      for (std::size_t k = 0; k < pages; ++k) {
        const std::size_t x = i + k * kPageFloats + j;
        Vector v = load(to + x);
        v += load(from + x);
        store(to + x, v);
      }
    }
  }
  return i;
}

// Copies with 64-byte stores, asking for the lines `want_lines` ahead in order to write them.
inline void vector_copy(float* to, const float* from, std::size_t count, int want_lines) {
  const std::size_t ahead = static_cast<std::size_t>(want_lines) * kLineFloats;
  std::size_t i = 0;
  for (; i + kLineFloats <= count; i += kLineFloats) {
    if (ahead != 0) {
      want(to + i + ahead);
    }
    store(to + i, load(from + i));
  }
  for (; i < count; ++i) {
    to[i] = from[i];
  }
}

}  // namespace isthmus::limits
