#pragma once

// Included by shim.cc only: tensors in the pool's memory.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "collectives/world.h"
#include "plugins/torch/store.h"

namespace isthmus::plugin {

// `size` elements, one-dimensional, with undefined contents, in the world's memory for buffers that
// the ranks of the node read in place. It goes back there with the last tensor that uses it.
inline at::Tensor pooled_tensor(World& world, std::int64_t size, const at::TensorOptions& options) {
  if (size < 0 || !options.device().is_cpu()) {
    refuse(Code::kInvalidArgument,
           c10::str("isthmus allocate_tensor makes CPU tensors of 0 or more elements, asked for ",
                    size, " on ", options.device().str(), "."));
  }
  Result<MemoryRegion> taken =
      world.allocate(static_cast<std::size_t>(size) * options.dtype().itemsize());
  if (!taken.ok()) {
    raise(taken.error());
  }
  auto region = std::make_shared<MemoryRegion>(std::move(taken).value());
  void* const data = region->data();
  return at::from_blob(
      data, {size}, [region = std::move(region)](void*) mutable { region.reset(); }, options);
}

}  // namespace isthmus::plugin
