#pragma once

// Included by shim.cc only: the sum of sparse tensors.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "plugins/torch/job.h"

namespace isthmus::plugin {

// What ranks must agree on before any data moves, and how much each has.
struct SparseShape {
  static constexpr std::int64_t kDimsMax = 12;

  std::int64_t entries = 0;  // may differ
  std::int64_t dtype = 0;
  std::int64_t sparse_dims = 0;
  std::int64_t dims = 0;
  std::array<std::int64_t, kDimsMax> sizes{};

  bool fits(const SparseShape& other) const {
    return dtype == other.dtype && sparse_dims == other.sparse_dims && dims == other.dims &&
           sizes == other.sizes;
  }
};

inline SparseShape sparse_shape(const Tensor& tensor) {
  SparseShape shape{.entries = tensor._nnz(),
                    .dtype = static_cast<std::int64_t>(tensor.scalar_type()),
                    .sparse_dims = tensor.sparse_dim(),
                    .dims = tensor.dim()};
  if (tensor.dim() > SparseShape::kDimsMax) {
    refuse(Code::kUnsupported,
           c10::str("isthmus all_reduce takes sparse tensors of at most ", SparseShape::kDimsMax,
                    " dimensions, got ", tensor.dim(), "."));
  }
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), shape.sizes.begin());
  return shape;
}

// All ranks' `own`, each of its own length, one after the other.
inline Tensor gathered(const Tensor& own, const std::vector<std::int64_t>& lengths,
                       const std::function<void(const Call&)>& run) {
  std::int64_t total = 0;
  std::vector<std::size_t> counts;
  const std::int64_t width =
      kernel_dtype(own.scalar_type()) ? 1 : static_cast<std::int64_t>(own.element_size());
  for (const std::int64_t length : lengths) {
    total += length;
    counts.push_back(static_cast<std::size_t>(length * width));
  }
  Tensor all = at::empty({total}, own.options());
  Call call = move_call(OpKind::kAllGather, own, own.numel());
  call.input = own.const_data_ptr();
  call.output = all.mutable_data_ptr();
  call.counts = counts;
  run(call);
  return all;
}

// `tensor` becomes the sum, or the average, of all ranks' tensors, which have one shape and any
// entries. Every rank gathers all entries and adds them up in the order of the ranks: all get the
// same bits. `run` runs a call of the group on this thread.
inline void reduce_sparse(const Tensor& tensor, int ranks, const ReduceOp& op,
                          const std::function<void(const Call&)>& run) {
  if (op.op_ != ReduceOp::SUM && op.op_ != ReduceOp::AVG) {
    refuse(Code::kUnsupported, "isthmus all_reduce of sparse tensors takes SUM and AVG only.");
  }
  const at::AutoDispatchBelowAutograd no_autograd;
  const Tensor own = tensor.coalesce();
  const SparseShape shape = sparse_shape(own);
  std::vector<SparseShape> shapes(static_cast<std::size_t>(ranks));
  run({.op = OpKind::kAllGather,
       .dtype = DType::kInt64,
       .input = &shape,
       .output = shapes.data(),
       .count = sizeof(SparseShape) / sizeof(std::int64_t)});
  std::vector<std::int64_t> index_lengths;
  std::vector<std::int64_t> value_lengths;
  std::int64_t entries = 0;  // of all ranks
  std::int64_t dense = 1;    // elements of one value
  for (std::int64_t i = own.sparse_dim(); i < own.dim(); ++i) {
    dense *= own.size(i);
  }
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    if (!shapes[rank].fits(shapes[0])) {
      refuse(Code::kMismatch, c10::str("isthmus all_reduce: the sparse tensors of ranks 0 and ",
                                       rank, " differ in type, shape or sparse dimensions."));
    }
    entries += shapes[rank].entries;
    index_lengths.push_back(shapes[rank].entries * own.sparse_dim());
    value_lengths.push_back(shapes[rank].entries * dense);
  }
  const Tensor indices = gathered(own._indices().contiguous(), index_lengths, run);
  const Tensor values = gathered(own._values().contiguous(), value_lengths, run);
  Tensors blocks = indices.split_with_sizes(index_lengths);
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    blocks[rank] = blocks[rank].view({own.sparse_dim(), shapes[rank].entries});
  }
  std::vector<std::int64_t> value_sizes = own._values().sizes().vec();
  value_sizes[0] = entries;
  Tensor sum =
      at::sparse_coo_tensor(at::cat(blocks, 1), values.view(value_sizes), own.sizes()).coalesce();
  if (op.op_ == ReduceOp::AVG) {
    sum.div_(ranks);
  }
  tensor.copy_(sum);
}

}  // namespace isthmus::plugin
