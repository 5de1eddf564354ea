// Products of complex64 and complex128. reduce_float.cc has the reductions that go part by part.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_complex.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/reduce_loop_inl.h"
#include "kernels/reduce_table.h"

HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace {

// Real parts in the even lanes, imaginary ones in the odd.
template <class T>
struct ComplexProductKernel {
  using Storage = T;
  using D = hn::ScalableTag<T>;
  using ProbeTag = D;
  using Acc = hn::Vec<D>;
  static constexpr bool kCanonical = true;
  static constexpr int kUnroll = 4;
  static constexpr bool kFixedSources = false;
  static constexpr std::size_t kParts = 2;
  static constexpr std::size_t kPrefetchLines = 0;

  HWY_INLINE Acc start(Acc v) const { return v; }

  HWY_INLINE Acc combine(Acc acc, Acc v) const {
    const Acc by_real = hn::Mul(hn::DupEven(acc), v);
    const Acc by_imaginary = hn::Mul(hn::DupOdd(acc), hn::Reverse2(D(), v));
    return hn::OddEven(hn::Add(by_real, by_imaginary), hn::Sub(by_real, by_imaginary));
  }

  HWY_INLINE Acc scale(Acc acc) const { return acc; }

  HWY_INLINE Acc probe(Acc acc) const { return acc; }

  HWY_INLINE Acc canonical(Acc acc) const {
    const Acc nan = hn::Set(D(), std::numeric_limits<T>::quiet_NaN());
    return hn::IfThenElse(hn::IsNaN(acc), nan, acc);
  }

  HWY_INLINE Acc finish(Acc acc) const { return acc; }
};

template <DType kType, class T>
void complex_product(void* dst, const void* const* sources, int source_count, std::size_t count,
                     std::int32_t divisor) {
  check_reduce<RedOp::kProd>(source_count, divisor);
  if (source_count == 1) {
    return copy_source(dst, sources, count * dtype_bytes(kType));
  }
  reduce_any_count<kType, RedOp::kProd>(ComplexProductKernel<T>(), dst, sources, source_count,
                                        count, divisor);
}

}  // namespace

void fill_complex(ReduceTable& table) {
  table.at(DType::kComplex64, RedOp::kProd) = &complex_product<DType::kComplex64, float>;
  table.at(DType::kComplex128, RedOp::kProd) = &complex_product<DType::kComplex128, double>;
}
#else
void fill_complex(ReduceTable& /*table*/) {}
#endif
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(fill_complex);

void fill_complex_kernels(ReduceTable& table) {
  HWY_DYNAMIC_DISPATCH(fill_complex)(table);
}

}  // namespace isthmus
#endif
