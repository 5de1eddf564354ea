#include "collectives/terms.h"

namespace isthmus {

Terms::Terms(const Call& call, std::uint32_t ranks, bool deterministic)
    : element_bytes(dtype_bytes(call.dtype)) {
  if (!op_traits(call.op).reduces) [[likely]] {
    return;
  }
  operands = std::uint64_t{ranks} * operands_of(call);
  if (deterministic && operands > 1 && order_matters(call.dtype, call.red_op)) {
    binned = true;
    kernels = binned_kernels(call.dtype, call.red_op, operands);
    element_bytes = numbers_of(call.dtype) * kernels.sum_bytes;
  }
}

std::string why_unbinnable(const Call& call, std::uint32_t ranks) {
  const std::uint64_t operands = std::uint64_t{ranks} * operands_of(call);
  if (!op_traits(call.op).reduces || operands <= 1) {
    return {};
  }
  return why_not_binned(call.dtype, call.red_op, operands);
}

}  // namespace isthmus
