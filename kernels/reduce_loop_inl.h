// The loop that every SIMD reduction shares. Included once per Highway target (hence no #pragma
// once): it turns a Kernel into a ReduceFn. A Kernel has
//   Storage            the element in memory;
//   D                  the Highway tag of one vector of Storage as loaded and stored;
//   Acc                the accumulators of one such vector, in registers;
//   start(v)           the accumulators of the first source;
//   combine(acc, v)    with the next source;
//   scale(acc)         what precedes the rounding (AVG);
//   probe(acc)         a float vector, NaN wherever acc is, if kCanonical;
//   canonical(acc)     acc with its NaNs made canonical, if kCanonical;
//   finish(acc)        the vector to store;
//   kUnroll            vectors per step, so that the accumulators stay in registers;
//   kFixedSources      true where the usual numbers of sources are worth loops of their own;
//   kParts             Storages per element: 2 for complex numbers, whose parts are the lanes;
//   kPrefetchLines     how far ahead to ask for the sources' cache lines, 0: not at all.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "base/dtype.h"
#include "kernels/copy.h"
#include "kernels/element.h"
#include "kernels/reduce.h"

#if defined(ISTHMUS_REDUCE_LOOP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_REDUCE_LOOP_INL_H
#undef ISTHMUS_REDUCE_LOOP_INL_H
#else
#define ISTHMUS_REDUCE_LOOP_INL_H
#endif

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// For kernels that widen: their many instructions fill the processor's window long before it has
// seen enough lines to hide the way to another core's cache. Sums of wider types need no help.
constexpr std::size_t kWideningPrefetch = 16;

template <class Kernel>
HWY_INLINE typename Kernel::Acc canonical_accumulators(const Kernel& kernel,
                                                       typename Kernel::Acc acc) {
  if constexpr (Kernel::kCanonical) {
    return kernel.canonical(acc);
  } else {
    return acc;
  }
}

// Where one vector of a source comes from: everything, or only the first lanes.
template <class D>
struct WholeVector {
  HWY_INLINE hn::Vec<D> load(const hn::TFromD<D>* from) const { return hn::LoadU(D(), from); }

  HWY_INLINE void store(hn::Vec<D> v, hn::TFromD<D>* to) const { hn::StoreU(v, D(), to); }
};

template <class D>
struct FirstLanes {
  hn::Mask<D> mask;

  HWY_INLINE hn::Vec<D> load(const hn::TFromD<D>* from) const {
    return hn::MaskedLoad(mask, D(), from);
  }

  HWY_INLINE void store(hn::Vec<D> v, hn::TFromD<D>* to) const {
    hn::BlendedStore(v, mask, D(), to);
  }
};

// One vector of the result, at offset i, not yet stored. kSources is 0 when known only at run time.
template <int kSources, class Kernel, class Lanes>
HWY_INLINE hn::Vec<typename Kernel::D> reduce_vector(const Kernel& kernel, const Lanes& lanes,
                                                     const void* const* sources, int source_count,
                                                     std::size_t i) {
  using T = typename Kernel::Storage;
  const int n = kSources == 0 ? source_count : kSources;
  typename Kernel::Acc acc = kernel.start(lanes.load(static_cast<const T*>(sources[0]) + i));
  for (int k = 1; k < n; ++k) {
    acc = kernel.combine(acc, lanes.load(static_cast<const T*>(sources[k]) + i));
  }
  return kernel.finish(canonical_accumulators(kernel, kernel.scale(acc)));
}

// kUnroll vectors at offset i, stored. All loads come before all stores: dst may be a source.
template <int kSources, class Kernel>
HWY_INLINE void reduce_step(const Kernel& kernel, typename Kernel::Storage* dst,
                            const void* const* sources, int source_count, std::size_t i) {
  using T = typename Kernel::Storage;
  constexpr typename Kernel::D kTag;
  constexpr std::size_t kLanes = hn::MaxLanes(kTag);
  constexpr int kUnroll = Kernel::kUnroll;
  const int n = kSources == 0 ? source_count : kSources;
  typename Kernel::Acc acc[kUnroll];
  const T* from = static_cast<const T*>(sources[0]) + i;
  HWY_UNROLL(8)
  for (int u = 0; u < kUnroll; ++u) {
    acc[u] = kernel.start(hn::LoadU(kTag, from + static_cast<std::size_t>(u) * kLanes));
  }
  for (int k = 1; k < n; ++k) {
    from = static_cast<const T*>(sources[k]) + i;
    HWY_UNROLL(8)
    for (int u = 0; u < kUnroll; ++u) {
      acc[u] = kernel.combine(acc[u], hn::LoadU(kTag, from + static_cast<std::size_t>(u) * kLanes));
    }
  }
  HWY_UNROLL(8)
  for (int u = 0; u < kUnroll; ++u) {
    acc[u] = kernel.scale(acc[u]);
  }
  if constexpr (Kernel::kCanonical) {
    // One look at the sum of all lanes' accumulators is cheaper than one at each. An infinite
    // minus an infinite one only costs the detour.
    auto probe = kernel.probe(acc[0]);
    HWY_UNROLL(8)
    for (int u = 1; u < kUnroll; ++u) {
      probe = hn::Add(probe, kernel.probe(acc[u]));
    }
    if (HWY_UNLIKELY(!hn::AllFalse(typename Kernel::ProbeTag(), hn::IsNaN(probe)))) {
      HWY_UNROLL(8)
      for (int u = 0; u < kUnroll; ++u) {
        acc[u] = kernel.canonical(acc[u]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int u = 0; u < kUnroll; ++u) {
    hn::StoreU(kernel.finish(acc[u]), kTag, dst + i + static_cast<std::size_t>(u) * kLanes);
  }
}

// Asks for the cache lines of every source that begin kPrefetchLines behind a step at offset i.
template <class Kernel>
HWY_INLINE void prefetch_step(const void* const* sources, int n, std::size_t i) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kStepBytes =
      hn::MaxLanes(typename Kernel::D()) * Kernel::kUnroll * sizeof(typename Kernel::Storage);
  const std::size_t ahead = i * sizeof(typename Kernel::Storage) + Kernel::kPrefetchLines * kLine;
  for (int k = 0; k < n; ++k) {
    const char* const from = static_cast<const char*>(sources[k]) + ahead;
    HWY_UNROLL(8)
    for (std::size_t line = 0; line < kStepBytes; line += kLine) {
      hwy::Prefetch(from + line);
    }
  }
}

// count >= one vector. The last vector ends with the last element and is computed first, before an
// in-place result can overwrite what it reads; the overlap is written twice with the same bits.
template <int kSources, class Kernel>
HWY_INLINE void reduce_loop(const Kernel& kernel, void* dst_bytes, const void* const* sources,
                            int source_count, std::size_t count) {
  using T = typename Kernel::Storage;
  constexpr typename Kernel::D kTag;
  constexpr std::size_t kLanes = hn::MaxLanes(kTag);
  constexpr std::size_t kStep = kLanes * Kernel::kUnroll;
  const WholeVector<typename Kernel::D> whole;
  T* dst = static_cast<T*>(dst_bytes);
  const void* fixed[kSources == 0 ? 1 : kSources];
  if constexpr (kSources != 0) {
    for (int k = 0; k < kSources; ++k) {
      fixed[k] = sources[k];  // In registers: stores through dst cannot change them.
    }
    sources = fixed;
  }
  const std::size_t last = count - kLanes;
  const hn::Vec<typename Kernel::D> tail =
      reduce_vector<kSources>(kernel, whole, sources, source_count, last);
  std::size_t i = 0;
  if constexpr (Kernel::kPrefetchLines != 0 && kSources != 1) {
    // Never beyond the end: what lies there may be written by another core just now.
    constexpr std::size_t kAhead = Kernel::kPrefetchLines * 64 / sizeof(T);
    for (; i + kAhead + kStep <= count; i += kStep) {
      prefetch_step<Kernel>(sources, source_count, i);
      reduce_step<kSources>(kernel, dst, sources, source_count, i);
    }
  }
  for (; i + kStep <= count; i += kStep) {
    reduce_step<kSources>(kernel, dst, sources, source_count, i);
  }
  for (; i < last; i += kLanes) {
    hn::StoreU(reduce_vector<kSources>(kernel, whole, sources, source_count, i), kTag, dst + i);
  }
  hn::StoreU(tail, kTag, dst + last);
}

HWY_INLINE void copy_source(void* dst, const void* const* sources, std::size_t bytes) {
  if (dst != sources[0]) {
    copy_bytes(dst, sources[0], bytes);
  }
}

// Any number of elements and of sources. The arguments were checked.
template <DType kType, RedOp kOp, class Kernel>
HWY_INLINE void reduce_any_count(const Kernel& kernel, void* dst, const void* const* sources,
                                 int source_count, std::size_t elements, std::int32_t divisor) {
  using T [[maybe_unused]] = typename Kernel::Storage;  // some targets do not need it
  const std::size_t count = elements * Kernel::kParts;
  constexpr typename Kernel::D kTag;
  constexpr std::size_t kLanes = hn::MaxLanes(kTag);
  if (count < kLanes) {
#if HWY_TARGET <= HWY_AVX3
    constexpr std::size_t kScalarMax = 4;
    if (count > kScalarMax) {
      // Lanes masked off never fault, but cost about 150 ns where they reach into an absent page.
      const FirstLanes<typename Kernel::D> lanes{hn::FirstN(kTag, count)};
      lanes.store(reduce_vector<0>(kernel, lanes, sources, source_count, 0), static_cast<T*>(dst));
      return;
    }
#endif
    reduce_elements<kType, kOp>(dst, sources, source_count, elements, divisor);
    return;
  }
  if constexpr (Kernel::kFixedSources) {
    switch (source_count) {
      case 2:
        return reduce_loop<2>(kernel, dst, sources, 2, count);
      case 3:
        return reduce_loop<3>(kernel, dst, sources, 3, count);
      case 4:
        return reduce_loop<4>(kernel, dst, sources, 4, count);
      default:
        break;
    }
  }
  reduce_loop<0>(kernel, dst, sources, source_count, count);
}

// A Kernel whose scale() is all there is to do, on one source. Fewer elements than a vector pass
// through one on the stack.
template <class Kernel>
HWY_INLINE void scale_any_count(const Kernel& kernel, void* dst, const void* src,
                                std::size_t count) {
  using T = typename Kernel::Storage;
  constexpr std::size_t kLanes = hn::MaxLanes(typename Kernel::D());
  if (count >= kLanes) {
    return reduce_loop<1>(kernel, dst, &src, 1, count);
  }
  if (count == 0) {
    return;  // The pointers may be null.
  }
  T few[kLanes] = {};
  const void* source = few;
  std::memcpy(few, src, count * sizeof(T));
  reduce_loop<1>(kernel, few, &source, 1, kLanes);
  std::memcpy(dst, few, count * sizeof(T));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // toggle
