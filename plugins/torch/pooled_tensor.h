#pragma once

// Included by shim.cc only: tensors in the pool's memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <ATen/ATen.h>

#include "plugins/torch/memory.h"
#include "plugins/torch/store.h"

namespace isthmus::plugin {

// `size` elements, one-dimensional, with undefined contents. The memory goes back to the pool with
// the last tensor that uses it.
inline at::Tensor pooled_tensor(std::int64_t size, const at::TensorOptions& options) {
  if (size < 0 || !options.device().is_cpu()) {
    refuse(Code::kInvalidArgument,
           c10::str("isthmus allocate_tensor makes CPU tensors of 0 or more elements, asked for ",
                    size, " on ", options.device().str(), "."));
  }
  const std::size_t bytes =
      std::max<std::size_t>(static_cast<std::size_t>(size) * options.dtype().itemsize(), 1);
  const Result<void*> block = BufferPool::process().take(bytes);
  if (!block.ok()) {
    raise(block.error());
  }
  return at::from_blob(
      block.value(), {size}, [bytes](void* data) { BufferPool::process().give_back(data, bytes); },
      options);
}

}  // namespace isthmus::plugin
