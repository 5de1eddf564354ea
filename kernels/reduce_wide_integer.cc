// Integers of 32 and 64 bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_wide_integer.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/reduce_integer_inl.h"
#include "kernels/reduce_table.h"

HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace {

// AVG of int32, in float64: sums of kReduceSourcesMax elements are exact, and a quotient of
// integers below 2^53 cannot round up to the next integer, so truncating it is exact too. The
// divisor is at least the number of sources: the quotient fits.
struct Int32AverageKernel {
  using Storage = std::int32_t;
  using WideTag = hn::ScalableTag<double>;
  using D = hn::Rebind<std::int32_t, WideTag>;
  using Acc = hn::Vec<WideTag>;
  static constexpr bool kCanonical = false;
  static constexpr int kUnroll = 2;
  static constexpr bool kFixedSources = false;
  static constexpr std::size_t kParts = 1;
  static constexpr std::size_t kPrefetchLines = 0;
  double divisor;

  HWY_INLINE Acc start(hn::Vec<D> v) const { return hn::PromoteTo(WideTag(), v); }

  HWY_INLINE Acc combine(Acc acc, hn::Vec<D> v) const { return hn::Add(acc, start(v)); }

  HWY_INLINE Acc scale(Acc acc) const { return hn::Div(acc, hn::Set(WideTag(), divisor)); }

  HWY_INLINE hn::Vec<D> finish(Acc acc) const { return hn::DemoteTo(D(), acc); }
};

void average_int32(void* dst, const void* const* sources, int source_count, std::size_t count,
                   std::int32_t divisor) {
  constexpr DType kType = DType::kInt32;
  check_reduce<RedOp::kAvg>(source_count, divisor);
  if (divisor == 1) {
    return sum_instead<kType, std::int32_t>(dst, sources, source_count, count);
  }
  if (divisor >= source_count) {
    const Int32AverageKernel kernel{static_cast<double>(divisor)};
    return reduce_any_count<kType, RedOp::kAvg>(kernel, dst, sources, source_count, count, divisor);
  }
  reduce_elements<kType, RedOp::kAvg>(dst, sources, source_count, count, divisor);
}

// The other AVGs have no wider vectors to sum in.
template <DType kType, class T>
void average_elements(void* dst, const void* const* sources, int source_count, std::size_t count,
                      std::int32_t divisor) {
  check_reduce<RedOp::kAvg>(source_count, divisor);
  if (divisor == 1) {
    return sum_instead<kType, T>(dst, sources, source_count, count);
  }
  reduce_elements<kType, RedOp::kAvg>(dst, sources, source_count, count, divisor);
}

}  // namespace

void fill_wide_integer(ReduceTable& table) {
  IntegerReduce<DType::kInt32, DType::kUint32, std::int32_t>::fill(table);
  IntegerReduce<DType::kInt64, DType::kUint64, std::int64_t>::fill(table);
  table.at(DType::kInt32, RedOp::kAvg) = &average_int32;
  table.at(DType::kUint32, RedOp::kAvg) = &average_elements<DType::kUint32, std::uint32_t>;
  table.at(DType::kInt64, RedOp::kAvg) = &average_elements<DType::kInt64, std::int64_t>;
  table.at(DType::kUint64, RedOp::kAvg) = &average_elements<DType::kUint64, std::uint64_t>;
}
#else
void fill_wide_integer(ReduceTable& /*table*/) {}
#endif
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(fill_wide_integer);

void fill_wide_integer_kernels(ReduceTable& table) {
  HWY_DYNAMIC_DISPATCH(fill_wide_integer)(table);
}

}  // namespace isthmus
#endif
