#include "kernels/reduce.h"

#include <hwy/targets.h>

#include "base/check.h"
#include "kernels/reduce_table.h"

namespace isthmus {
namespace {

ReduceTable reference_table() {
  ReduceTable table;
  fill_scalar_kernels<DType::kFloat32>(table);
  fill_scalar_kernels<DType::kFloat64>(table);
  fill_scalar_kernels<DType::kFloat16>(table);
  fill_scalar_kernels<DType::kBFloat16>(table);
  fill_scalar_kernels<DType::kInt32>(table);
  fill_scalar_kernels<DType::kInt64>(table);
  fill_scalar_kernels<DType::kUint8>(table);
  return table;
}

}  // namespace

ReduceTable resolve_reduce_table() {
  ReduceTable table;
  fill_float_kernels(table);
  fill_half_kernels(table);
  fill_integer_kernels(table);
  return table;
}

std::int64_t reduce_compiled_targets() {
  return HWY_TARGETS;
}

ReduceFn reduce_kernel(DType dtype, RedOp op) {
  static const ReduceTable table = resolve_reduce_table();
  return table.at(dtype, op);
}

// NOLINTNEXTLINE(readability-function-size): a ReduceFn's parameters and its two keys.
void reduce_reference(DType dtype, RedOp op, void* dst, const void* const* sources,
                      int source_count, std::size_t count, std::int32_t divisor) {
  static const ReduceTable table = reference_table();
  const ReduceFn fn = table.at(dtype, op);
  ISTHMUS_CHECK(fn != nullptr, "only reducible dtypes have a reference");
  fn(dst, sources, source_count, count, divisor);
}

}  // namespace isthmus
