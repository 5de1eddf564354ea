#include "kernels/reduce.h"

#include <hwy/targets.h>

#include "base/check.h"
#include "kernels/reduce_table.h"

namespace isthmus {
namespace {

const ReduceTable& best_table() {
  static const ReduceTable table = resolve_reduce_table();
  return table;
}

const ReduceTable& scalar_table() {
  static const ReduceTable table = reference_table();
  return table;
}

}  // namespace

ReduceTable resolve_reduce_table() {
  ReduceTable table = reference_table();
  fill_float_kernels(table);
  fill_complex_kernels(table);
  fill_half_kernels(table);
  fill_float8_kernels(table);
  fill_wide_integer_kernels(table);
  fill_narrow_integer_kernels(table);
  return table;
}

std::int64_t reduce_compiled_targets() {
  return HWY_TARGETS;
}

ReduceFn reduce_kernel(DType dtype, RedOp op) {
  return best_table().at(dtype, op);
}

ScaleFn scale_kernel(DType dtype) {
  return best_table().scale_of(dtype);
}

// NOLINTNEXTLINE(readability-function-size): a ReduceFn's parameters and its two keys.
void reduce_reference(DType dtype, RedOp op, void* dst, const void* const* sources,
                      int source_count, std::size_t count, std::int32_t divisor) {
  const ReduceFn fn = scalar_table().at(dtype, op);
  ISTHMUS_CHECK(fn != nullptr, "only reducible dtypes have a reference");
  fn(dst, sources, source_count, count, divisor);
}

void scale_reference(DType dtype, void* dst, const void* src, std::size_t count, double factor) {
  const ScaleFn fn = scalar_table().scale_of(dtype);
  ISTHMUS_CHECK(fn != nullptr, "only types that PREMUL_SUM takes have a reference");
  fn(dst, src, count, factor);
}

}  // namespace isthmus
