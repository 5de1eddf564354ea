#pragma once

// Included by shim.cc only: tensors as the engine sees them.
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "collectives/call.h"
#include "plugins/torch/store.h"
#include "plugins/torch/versions.h"
#include "schedule/work.h"

namespace isthmus::plugin {

using at::Tensor;
using c10d::OpType;
using c10d::ReduceOp;
using Tensors = std::vector<Tensor>;
using TensorLists = std::vector<Tensors>;

inline std::optional<DType> kernel_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kBool:
      return DType::kBool;
    case at::kChar:
      return DType::kInt8;
    case at::kShort:
      return DType::kInt16;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kByte:
      return DType::kUint8;
    case at::kUInt16:
      return DType::kUint16;
    case at::kUInt32:
      return DType::kUint32;
    case at::kUInt64:
      return DType::kUint64;
    case at::kComplexFloat:
      return DType::kComplex64;
    case at::kComplexDouble:
      return DType::kComplex128;
    case at::kFloat8_e4m3fn:
      return DType::kFloat8E4m3fn;
    case at::kFloat8_e5m2:
      return DType::kFloat8E5m2;
    case at::kFloat8_e4m3fnuz:
      return DType::kFloat8E4m3fnuz;
    case at::kFloat8_e5m2fnuz:
      return DType::kFloat8E5m2fnuz;
    default:
      return std::nullopt;
  }
}

// "int16", as torch writes it after "torch.".
inline std::string dtype_text(const Tensor& tensor) {
  if (const std::optional<DType> dtype = kernel_dtype(tensor.scalar_type())) {
    return std::string(dtype_name(*dtype));
  }
  if (tensor.scalar_type() == at::kComplexHalf) {
    return "complex32";
  }
  std::string text = c10::toString(tensor.scalar_type());
  text[0] = static_cast<char>(std::tolower(text[0]));
  return text;
}

inline void check_tensor(const Tensor& tensor, const char* op) {
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided) [[unlikely]] {
    refuse(Code::kUnsupported,
           c10::str("isthmus ", op, " takes dense tensors in CPU memory, this one is ",
                    c10::str(tensor.layout()), " on ", tensor.device().str(),
                    ": move it with .cpu(), or name another backend for its device, as in "
                    "init_process_group(\"cpu:isthmus,cuda:nccl\")."));
  }
}

// True when the engine may read and write the tensor's memory as it lies.
inline bool plain(const Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

inline const Tensor& only(const Tensors& tensors, const char* op) {
  if (tensors.size() != 1) {
    refuse(Code::kInvalidArgument,
           c10::str("isthmus ", op, " takes one tensor, got ", tensors.size(), "."));
  }
  return tensors.front();
}

// A call that moves `numel` elements of the tensor's type: types without kernels travel as bytes.
inline Call move_call(OpKind kind, const Tensor& tensor, std::int64_t numel) {
  Call call{.op = kind, .count = static_cast<std::size_t>(numel)};
  if (const std::optional<DType> dtype = kernel_dtype(tensor.scalar_type())) {
    call.dtype = *dtype;
  } else {
    call.count *= tensor.element_size();
  }
  return call;
}

inline constexpr const char* kReduceNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                               "BAND", "BOR", "BXOR",    "PREMUL_SUM"};

// The factor of a PREMUL_SUM: each rank has its own.
inline double factor_of(const ReduceOp& op, const char* name) {
  const auto* premul = dynamic_cast<const PreMulSum*>(op.supplement_.get());
  if (premul == nullptr) {
    refuse(Code::kInvalidArgument,
           c10::str("isthmus ", name,
                    " got a PREMUL_SUM without a factor: make the operation with "
                    "torch.distributed._make_nccl_premul_sum(factor)."));
  }
  return premul->tensor_factor.defined() ? premul->tensor_factor.item<double>()
                                         : premul->double_factor;
}

inline Call reduce_call(OpKind kind, const Tensor& tensor, std::int64_t numel, const ReduceOp& op,
                        const char* name) {
  // By torch's numbers.
  constexpr RedOp kRedOps[] = {RedOp::kSum, RedOp::kAvg,  RedOp::kProd,
                               RedOp::kMin, RedOp::kMax,  RedOp::kBand,
                               RedOp::kBor, RedOp::kBxor, RedOp::kPremulSum};
  const auto index = static_cast<std::size_t>(op.op_);
  const DType dtype = kernel_dtype(tensor.scalar_type()).value_or(DType::kByte);
  if (index >= std::size(kRedOps) || !reducible(dtype, kRedOps[index])) [[unlikely]] {
    const bool known = index < std::size(kRedOps);
    refuse(Code::kUnsupported,
           c10::str("isthmus ", name, " ", known ? kReduceNames[index] : "of an unknown operation",
                    " on ", dtype_text(tensor), " is not supported: ",
                    known ? why_not_reducible(dtype, kRedOps[index])
                          : "torch's operations are numbered 0 to 8",
                    ". docs/dtypes.md lists what is."));
  }
  Call call{.op = kind,
            .dtype = dtype,
            .red_op = kRedOps[index],
            .count = static_cast<std::size_t>(numel)};
  if (call.red_op == RedOp::kPremulSum) [[unlikely]] {
    call.factor = factor_of(op, name);
  }
  return call;
}

struct Copy {
  Tensor to;
  Tensor from;
};

inline void copy_all(const std::vector<Copy>& copies) {
  const at::AutoDispatchBelowAutograd no_autograd;
  for (const Copy& copy : copies) {
    copy.to.copy_(copy.from);
  }
}

// Elements that share memory cannot each get a value of their own.
inline void check_writable(const Tensor& tensor) {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    refuse(Code::kInvalidArgument,
           c10::str("isthmus cannot write into a tensor whose elements overlap in memory (sizes ",
                    tensor.sizes(), ", strides ", tensor.strides(),
                    "), as expand() makes: pass its .contiguous() or .clone()."));
  }
}

inline bool is_message(OpType type) {
  return type == OpType::SEND || type == OpType::RECV || type == OpType::RECVANYSOURCE;
}

// One c10d call: what its running parts are, and what must outlive them.
struct Job {
  OpType type = OpType::UNKNOWN;
  const char* title = nullptr;  // "isthmus:all_gather", for the profiler
  milliseconds timeout{-1};
  int peer = -1;                                    // of a message that names one
  std::optional<Priority> priority = std::nullopt;  // the group's
  bool async = false;
  bool nested = false;                           // the future holds a list of lists
  std::vector<Call> calls;                       // collectives, in order
  std::vector<std::vector<std::size_t>> counts;  // of blocks that differ in length
  std::vector<const void*> pointers;             // of several operands of a call
  std::vector<WorkRef> parts;                    // what runs
  std::vector<Copy> copies;                      // done once all parts are
  Tensors inputs;                                // where they are not the outputs; for records
  Tensors outputs;                               // what the future holds
  Tensors keep;                                  // other memory that the parts use

  // Memory for the engine in place of `tensor`: its own, or a copy where it does not lie densely.
  void* in_place(const Tensor& tensor, bool read, bool write) {
    if (plain(tensor)) {
      keep.push_back(tensor);
      return write ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
    }
    if (write) {
      check_writable(tensor);
    }
    Tensor flat =
        at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
    if (read) {
      copy_all({{flat, tensor}});
    }
    if (write) {
      copies.push_back({tensor, flat});
    }
    keep.push_back(flat);
    return flat.mutable_data_ptr();
  }

  // The same for a list of tensors: one block of `width` elements each, one after the other.
  void* blocks(const Tensors& list, std::int64_t width, bool read, bool write) {
    const std::size_t bytes = static_cast<std::size_t>(width) * list[0].element_size();
    auto* const begin = static_cast<char*>(const_cast<void*>(list[0].const_data_ptr()));
    bool packed = true;
    for (std::size_t i = 0; i < list.size(); ++i) {
      packed = packed && plain(list[i]) && list[i].numel() == width &&
               (bytes == 0 || list[i].const_data_ptr() == begin + i * bytes);
    }
    if (packed) {
      keep.insert(keep.end(), list.begin(), list.end());
      return write ? list[0].mutable_data_ptr() : begin;
    }
    Tensor flat = at::empty({static_cast<std::int64_t>(list.size()), width}, list[0].options());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Tensor block = flat[static_cast<std::int64_t>(i)].narrow(0, 0, list[i].numel());
      if (read) {
        copy_all({{block.view(list[i].sizes()), list[i]}});
      }
      if (write) {
        check_writable(list[i]);
        copies.push_back({list[i], block.view(list[i].sizes())});
      }
    }
    keep.push_back(flat);
    return flat.mutable_data_ptr();
  }
};

}  // namespace isthmus::plugin
