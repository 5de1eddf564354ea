#pragma once

// Included by shim.cc only: the one place that knows in what versions of torch differ. Older ones
// get what they lack, so that the rest is written for the newest.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/version.h>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8,
              "isthmus needs torch 2.8 or newer: before, options did not say whether to wait");

namespace isthmus::plugin {

#if TORCH_VERSION_MINOR >= 9
using BackendOptions = c10d::Backend::Options;
using BackendBase = c10d::Backend;
#else
// Nothing in torch 2.8 calls these functions or reads these members.
struct BackendOptions : c10d::Backend::Options {
  using c10d::Backend::Options::Options;

  std::string group_name;
  std::vector<std::uint64_t> global_ranks_in_group;
};

class BackendBase : public c10d::Backend {
 public:
  using Options = BackendOptions;
  using c10d::Backend::Backend;

  virtual void setTimeout(std::chrono::milliseconds timeout) = 0;
  virtual c10::intrusive_ptr<Options> getBackendOptions() = 0;
  virtual c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const std::vector<int>& ranks,
                                                  const c10::intrusive_ptr<Options>& opts) = 0;
  virtual c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const c10::intrusive_ptr<Options>& opts,
                                                  const int& rank, const int& size) = 0;
};
#endif

#if TORCH_VERSION_MINOR >= 14
using CloneableOptions = BackendOptions;
#else
struct CloneableOptions : BackendOptions {
  using BackendOptions::BackendOptions;

  virtual c10::intrusive_ptr<c10d::Backend::Options> clone() const = 0;
};
#endif

// What the profiler and the flight recorder call the two operations on lists of tensors.
#if TORCH_VERSION_MINOR >= 14
inline constexpr auto kAllGatherCoalesced = c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED;
#else
inline constexpr auto kAllGatherCoalesced = c10d::OpType::COALESCED;
#endif
#if TORCH_VERSION_MINOR >= 12
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#else
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::COALESCED;
#endif

#if TORCH_VERSION_MINOR >= 13
using PreMulSum = c10d::PreMulSumSupplement;
#else
using PreMulSum = c10d::NCCLPreMulSumSupplement;
#endif

}  // namespace isthmus::plugin
