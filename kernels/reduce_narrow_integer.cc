// Integers of 8 and 16 bits, and bool.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_narrow_integer.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/reduce_integer_inl.h"
#include "kernels/reduce_table.h"

HWY_BEFORE_NAMESPACE();

namespace isthmus {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace {

// AVG in float32: sums of kReduceSourcesMax elements stay below 2^24 and are exact, and a quotient
// of such integers cannot round up to the next integer, so truncating it is exact too. A divisor
// that float32 cannot hold is greater than any sum.
template <class T>
struct NarrowAverageKernel {
  using Storage = T;
  using WideTag = hn::ScalableTag<std::int32_t>;
  using FloatTag = hn::RebindToFloat<WideTag>;
  using D = hn::Rebind<T, WideTag>;
  using Acc = hn::Vec<WideTag>;
  static constexpr bool kCanonical = false;
  static constexpr int kUnroll = 2;
  static constexpr bool kFixedSources = false;
  static constexpr std::size_t kParts = 1;
  static constexpr std::size_t kPrefetchLines = 0;
  float divisor;

  HWY_INLINE Acc start(hn::Vec<D> v) const { return hn::PromoteTo(WideTag(), v); }

  HWY_INLINE Acc combine(Acc acc, hn::Vec<D> v) const { return hn::Add(acc, start(v)); }

  HWY_INLINE Acc scale(Acc acc) const {
    const auto quotient = hn::Div(hn::ConvertTo(FloatTag(), acc), hn::Set(FloatTag(), divisor));
    const Acc whole = hn::ConvertTo(WideTag(), quotient);
    // An average of fewer than all wraps, as the sum does; DemoteTo would saturate.
    constexpr int kSpare = 32 - 8 * static_cast<int>(sizeof(T));
    if constexpr (std::is_signed_v<T>) {
      return hn::ShiftRight<kSpare>(hn::ShiftLeft<kSpare>(whole));
    } else {
      return hn::And(whole, hn::Set(WideTag(), std::numeric_limits<T>::max()));
    }
  }

  HWY_INLINE hn::Vec<D> finish(Acc acc) const { return hn::DemoteTo(D(), acc); }
};

template <DType kType, class T>
void average_narrow(void* dst, const void* const* sources, int source_count, std::size_t count,
                    std::int32_t divisor) {
  check_reduce<RedOp::kAvg>(source_count, divisor);
  if (divisor == 1) {
    return sum_instead<kType, T>(dst, sources, source_count, count);
  }
  const NarrowAverageKernel<T> kernel{static_cast<float>(divisor)};
  reduce_any_count<kType, RedOp::kAvg>(kernel, dst, sources, source_count, count, divisor);
}

// Any byte but 0 is true.
template <RedOp kOp>
struct BoolKernel : IntegerKernel<std::uint8_t, kOp> {
  using Base = IntegerKernel<std::uint8_t, kOp>;
  using typename Base::Acc;
  using typename Base::D;

  HWY_INLINE Acc start(Acc v) const { return hn::Min(v, hn::Set(D(), 1)); }

  HWY_INLINE Acc combine(Acc acc, Acc v) const { return Base::combine(acc, start(v)); }
};

void fill_bool(ReduceTable& table) {
  constexpr DType kBool = DType::kBool;
  const ReduceFn every = &reduce_integers<kBool, RedOp::kBand, BoolKernel<RedOp::kBand>>;
  const ReduceFn any = &reduce_integers<kBool, RedOp::kBor, BoolKernel<RedOp::kBor>>;
  for (const RedOp op : {RedOp::kProd, RedOp::kMin, RedOp::kBand}) {
    table.at(kBool, op) = every;
  }
  for (const RedOp op : {RedOp::kSum, RedOp::kMax, RedOp::kBor}) {
    table.at(kBool, op) = any;
  }
  table.at(kBool, RedOp::kBxor) = &reduce_integers<kBool, RedOp::kBxor, BoolKernel<RedOp::kBxor>>;
}

}  // namespace

void fill_narrow_integer(ReduceTable& table) {
  IntegerReduce<DType::kInt8, DType::kUint8, std::int8_t>::fill(table);
  IntegerReduce<DType::kInt16, DType::kUint16, std::int16_t>::fill(table);
  table.at(DType::kInt8, RedOp::kAvg) = &average_narrow<DType::kInt8, std::int8_t>;
  table.at(DType::kUint8, RedOp::kAvg) = &average_narrow<DType::kUint8, std::uint8_t>;
  table.at(DType::kInt16, RedOp::kAvg) = &average_narrow<DType::kInt16, std::int16_t>;
  table.at(DType::kUint16, RedOp::kAvg) = &average_narrow<DType::kUint16, std::uint16_t>;
  fill_bool(table);
}
#else
void fill_narrow_integer(ReduceTable& /*table*/) {}
#endif
}  // namespace HWY_NAMESPACE
}  // namespace isthmus

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {

HWY_EXPORT(fill_narrow_integer);

void fill_narrow_integer_kernels(ReduceTable& table) {
  HWY_DYNAMIC_DISPATCH(fill_narrow_integer)(table);
}

}  // namespace isthmus
#endif
