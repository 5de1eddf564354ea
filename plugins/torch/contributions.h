#pragma once

// Included by shim.cc only: several tensors of a rank, reduced to one.
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

}  // namespace isthmus::plugin
