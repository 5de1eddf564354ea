// The scalar kernels of every dtype: the reference, and the target without SIMD.
#include <utility>

#include "kernels/element.h"
#include "kernels/reduce_table.h"

namespace isthmus {
namespace {

template <DType kType, RedOp kOp>
void reduce_scalar(void* dst, const void* const* sources, int source_count, std::size_t count,
                   std::int32_t divisor) {
  check_reduce<kOp>(source_count, divisor);
  reduce_elements<kType, kOp>(dst, sources, source_count, count, divisor);
}

template <DType kType, RedOp kOp>
void fill_op(ReduceTable& table) {
  if constexpr (kOp == RedOp::kPremulSum && reducible(kType, kOp)) {
    table.at(kType, kOp) = &reduce_scalar<kType, RedOp::kSum>;
    table.scale[static_cast<std::size_t>(kType)] = &scale_elements<kType>;
  } else if constexpr (reducible(kType, kOp)) {
    table.at(kType, kOp) = &reduce_scalar<kType, kOp>;
  }
}

template <DType kType, int... kOps>
void fill_dtype(ReduceTable& table, std::integer_sequence<int, kOps...> /*ops*/) {
  (fill_op<kType, static_cast<RedOp>(kOps)>(table), ...);
}

template <int... kTypes>
void fill_dtypes(ReduceTable& table, std::integer_sequence<int, kTypes...> /*dtypes*/) {
  constexpr std::make_integer_sequence<int, kRedOpCount> kEveryOp;
  (fill_dtype<static_cast<DType>(kTypes)>(table, kEveryOp), ...);
}

}  // namespace

ReduceTable reference_table() {
  ReduceTable table;
  fill_dtypes(table, std::make_integer_sequence<int, kDTypeCount>());
  return table;
}

}  // namespace isthmus
