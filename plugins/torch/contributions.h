#pragma once

// Included by shim.cc only: reductions that torch's own interface does not have.
#include <cstdint>
#include <optional>
#include <utility>

#include "plugins/torch/checks.h"
#include "plugins/torch/issuer.h"
#include "plugins/torch/job.h"

namespace isthmus::plugin {

// The all_reduce of all ranks' contributions into `output`, which may be one of them. All ranks
// bring as many.
inline WorkPtr all_reduce_contributions(Issuer& issuer, const Tensor& output,
                                        const Tensors& contributions,
                                        const c10d::AllreduceOptions& opts) {
  constexpr const char* kCall = "all_reduce_contributions";
  if (contributions.empty()) {
    refuse(Code::kInvalidArgument,
           c10::str("isthmus ", kCall, " takes one tensor or more, got none."));
  }
  check_tensor(output, kCall);
  Job job;
  job.type = OpType::ALLREDUCE;
  job.title = "isthmus:all_reduce";
  job.timeout = opts.timeout;
  job.async = opts.asyncOp;
  job.inputs = contributions;
  job.outputs = {output};
  Call call = reduce_call(OpKind::kAllReduce, output, output.numel(), opts.reduceOp, kCall);
  for (const Tensor& tensor : contributions) {
    check_tensor(tensor, kCall);
    check_sizes(kCall, output.numel(), tensor.numel());
    if (tensor.scalar_type() != output.scalar_type()) {
      refuse(Code::kInvalidArgument,
             c10::str("isthmus ", kCall, " takes tensors of one type, got ", dtype_text(output),
                      " and ", dtype_text(tensor), "."));
    }
    job.pointers.push_back(job.in_place(tensor, true, false));
  }
  call.inputs = job.pointers;
  call.output = job.in_place(output, false, true);
  job.calls.push_back(call);
  return issuer.issue(std::move(job));
}

// `input`, of as many blocks as there are shards, reduced over all ranks; rank r's block, r modulo
// their number, goes to `output`.
// NOLINTNEXTLINE(readability-function-size): the parameters that every such interface has
inline WorkPtr reduce_shards(Issuer& issuer, const Tensor& output, const Tensor& input,
                             std::uint32_t shards, const c10d::ReduceScatterOptions& opts,
                             std::optional<Priority> priority) {
  constexpr const char* kCall = "reduce_shards";
  check_tensor(output, kCall);
  check_tensor(input, kCall);
  check_sizes(kCall, output.numel() * static_cast<std::int64_t>(shards), input.numel());
  if (input.scalar_type() != output.scalar_type()) {
    refuse(Code::kInvalidArgument, "isthmus reduce_shards: input and output differ in type.");
  }
  Job job;
  job.type = OpType::REDUCE_SCATTER;
  job.title = "isthmus:reduce_shards";
  job.priority = priority;
  job.timeout = opts.timeout;
  job.async = opts.asyncOp;
  job.inputs = {input};
  job.outputs = {output};
  Call call = reduce_call(OpKind::kReduceShards, input, output.numel(), opts.reduceOp, kCall);
  call.shards = shards;
  call.input = job.in_place(input, true, false);
  call.output = job.in_place(output, false, true);
  job.calls.push_back(call);
  return issuer.issue(std::move(job));
}

}  // namespace isthmus::plugin
