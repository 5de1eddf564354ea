#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include <hwy/targets.h>

#include "kernels/reduce_table.h"

namespace isthmus::test {

// One SIMD target of the library that this processor can run, with its kernels.
struct Target {
  std::string name;
  ReduceTable table;
};

// Every target that was compiled in and runs here, the scalar one included. Leaves Highway's
// choice as it was before. Not thread-safe.
inline std::vector<Target> runnable_targets() {
  std::vector<Target> result;
  const std::int64_t runnable = hwy::SupportedTargets() & reduce_compiled_targets();
  for (std::int64_t rest = runnable; rest != 0; rest &= rest - 1) {
    const std::int64_t bit = rest & -rest;
    hwy::SetSupportedTargetsForTest(bit);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    result.push_back({hwy::TargetName(bit), resolve_reduce_table()});
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return result;
}

inline std::vector<DType> reducible_dtypes() {
  std::vector<DType> result;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (reducible(static_cast<DType>(i), RedOp::kSum)) {
      result.push_back(static_cast<DType>(i));
    }
  }
  return result;
}

inline std::vector<RedOp> ops_of(DType dtype) {
  std::vector<RedOp> result;
  for (int i = 0; i < kRedOpCount; ++i) {
    if (reducible(dtype, static_cast<RedOp>(i))) {
      result.push_back(static_cast<RedOp>(i));
    }
  }
  return result;
}

inline std::string label(const Target& target, DType dtype, RedOp op) {
  return target.name + " " + std::string(dtype_name(dtype)) + " " + std::string(red_op_name(op));
}

}  // namespace isthmus::test
