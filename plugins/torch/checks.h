#pragma once

// Included by shim.cc only: what every call checks before anything moves.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "plugins/torch/job.h"

namespace isthmus::plugin {

// Tag of point-to-point messages inside collectives; users' tags are below.
inline constexpr std::uint32_t kInternalTag = kTagMax;

inline std::uint32_t user_tag(int tag) {
  if (tag < 0 || static_cast<std::uint32_t>(tag) >= kInternalTag) {
    refuse(Code::kInvalidArgument,
           c10::str("isthmus takes tags from 0 to ", kInternalTag - 1, ", got ", tag, "."));
  }
  return static_cast<std::uint32_t>(tag);
}

inline void check_sizes(const char* op, std::int64_t expected, std::int64_t got) {
  if (expected != got) [[unlikely]] {
    refuse(Code::kInvalidArgument,
           c10::str("isthmus ", op, ": sizes do not fit, expected ", expected, ", got ", got, "."));
  }
}

inline void check_sizes(const char* op, std::size_t expected, std::size_t got) {
  check_sizes(op, static_cast<std::int64_t>(expected), static_cast<std::int64_t>(got));
}

// The one list of `ranks` tensors of the type of `other`.
inline const Tensors& only_list(const TensorLists& lists, const char* op, const Tensor& other,
                                int ranks) {
  check_tensor(other, op);
  check_sizes(op, std::size_t{1}, lists.size());
  check_sizes(op, static_cast<std::size_t>(ranks), lists[0].size());
  for (const Tensor& tensor : lists[0]) {
    check_tensor(tensor, op);
    if (tensor.scalar_type() != other.scalar_type()) {
      refuse(Code::kInvalidArgument,
             c10::str("isthmus ", op, ": the tensors must have one type, got ", dtype_text(tensor),
                      " and ", dtype_text(other), "."));
    }
  }
  return lists[0];
}

inline void check_equal(const char* op, const Tensors& list, std::int64_t numel) {
  for (const Tensor& tensor : list) {
    check_sizes(op, numel, tensor.numel());
  }
}

inline std::int64_t widest(const Tensors& list) {
  std::int64_t width = 0;
  for (const Tensor& tensor : list) {
    width = std::max(width, tensor.numel());
  }
  return width;
}

}  // namespace isthmus::plugin
