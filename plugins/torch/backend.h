#pragma once

// Included by shim.cc only: the c10d backend. Its virtual functions run without Python's lock;
// asyncOp == false runs on the caller's thread and returns no Work.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "plugins/torch/checks.h"
#include "plugins/torch/issuer.h"
#include "plugins/torch/job.h"
#include "plugins/torch/options.h"
#include "plugins/torch/pooled_tensor.h"
#include "plugins/torch/sparse.h"
#include "plugins/torch/work.h"
#include "plugins/torch/worlds.h"

namespace isthmus::plugin {

// Threads that the world joins may be about to take Python's lock: give it up meanwhile.
inline void end_world(std::unique_ptr<World> world) {
  const WithoutGil no_gil;
  world.reset();
}

class BackendIsthmus final : public BackendBase {
 public:
  BackendIsthmus(std::shared_ptr<Group> group, c10::intrusive_ptr<Options> options,
                 const GroupRequest& request)
      : BackendBase(request.rank, request.size),
        group_(std::move(group)),
        issuer_(*this, group_, request.priority),
        options_(std::move(options)),
        restart_(request.restart) {
    init();
  }

  // Joins the group; `store` is what its ranks share.
  static c10::intrusive_ptr<BackendIsthmus> create(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const GroupRequest& request) {
    TorchStoreRendezvous rendezvous(store);
    Result<std::shared_ptr<Group>> group = join(request, rendezvous, end_world);
    rendezvous.interrupt.rethrow();
    if (!group.ok()) {
      raise(group.error());
    }
    auto options = c10::make_intrusive<plugin::Options>(milliseconds(request.timeout_ms));
    options->priority = request.priority;
    options->group_name = request.name;
    options->global_ranks_in_group.assign(request.world_ranks.begin(), request.world_ranks.end());
    return c10::make_intrusive<BackendIsthmus>(std::move(group).value(), std::move(options),
                                               request);
  }

  Issuer& issuer() { return issuer_; }

  const std::string getBackendName() const override { return kName; }

  c10::intrusive_ptr<BackendOptions> getBackendOptions() override { return options_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    const Tensor& tensor = only(tensors, "all_reduce");
    if (tensor.layout() == at::kSparse && tensor.is_cpu()) [[unlikely]] {
      return allreduce_sparse(tensors, opts);
    }
    check_tensor(tensor, "all_reduce");
    Call call =
        reduce_call(OpKind::kAllReduce, tensor, tensor.numel(), opts.reduceOp, "all_reduce");
    if (issuer_.runs_inline(opts.asyncOp) && plain(tensor)) [[likely]] {
      call.input = call.output = tensor.mutable_data_ptr();
      return issuer_.run(call, opts.timeout);
    }
    Job job = new_job(OpType::ALLREDUCE, "isthmus:all_reduce", opts, {tensor});
    call.input = call.output = job.in_place(tensor, true, true);
    job.calls.push_back(call);
    return issuer_.issue(std::move(job));
  }

  // Runs here and now: how much there is to gather is known only when the ranks have met.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    const Tensor& tensor = only(tensors, "all_reduce");
    reduce_sparse(tensor, getSize(), opts.reduceOp,
                  [&](const Call& call) { issuer_.run(call, opts.timeout); });
    return issuer_.issue(
        new_job(OpType::_ALLREDUCE_SPARSE, "isthmus:all_reduce_sparse", opts, {tensor}));
  }

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override {
    Job job = new_job(OpType::ALLREDUCE_COALESCED, "isthmus:all_reduce_coalesced", opts, tensors);
    for (const Tensor& tensor : tensors) {
      check_tensor(tensor, "all_reduce");
      Call call =
          reduce_call(OpKind::kAllReduce, tensor, tensor.numel(), opts.reduceOp, "all_reduce");
      call.input = call.output = job.in_place(tensor, true, true);
      job.calls.push_back(call);
    }
    return issuer_.issue(std::move(job));
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const Tensor& tensor = only(tensors, "reduce");
    check_tensor(tensor, "reduce");
    const bool root = opts.rootRank == getRank();
    Job job = new_job(OpType::REDUCE, "isthmus:reduce", opts, {tensor});
    Call call = reduce_call(OpKind::kReduce, tensor, tensor.numel(), opts.reduceOp, "reduce");
    call.root = static_cast<std::uint32_t>(opts.rootRank);
    call.input = job.in_place(tensor, true, root);
    call.output = root ? const_cast<void*>(call.input) : nullptr;
    job.calls.push_back(call);
    return issuer_.issue(std::move(job));
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const Tensor& tensor = only(tensors, "broadcast");
    check_tensor(tensor, "broadcast");
    Call call = move_call(OpKind::kBroadcast, tensor, tensor.numel());
    call.root = static_cast<std::uint32_t>(opts.rootRank);
    if (issuer_.runs_inline(opts.asyncOp) && plain(tensor)) [[likely]] {
      call.input = call.output = tensor.mutable_data_ptr();
      return issuer_.run(call, opts.timeout);
    }
    const bool root = opts.rootRank == getRank();
    Job job = new_job(OpType::BROADCAST, "isthmus:broadcast", opts, {tensor});
    call.input = call.output = job.in_place(tensor, root, !root);
    job.calls.push_back(call);
    return issuer_.issue(std::move(job));
  }

  WorkPtr _allgather_base(Tensor& output, Tensor& input,
                          const c10d::AllgatherOptions& opts) override {
    Job job = new_job(OpType::_ALLGATHER_BASE, "isthmus:all_gather", opts, {});
    if (issuer_.runs_inline(opts.asyncOp) && plain(output) && plain(input)) [[likely]] {
      return issuer_.run(gather_call(job, output, input), opts.timeout);
    }
    job.inputs = {input};
    job.outputs = {output};
    job.calls.push_back(gather_call(job, output, input));
    return issuer_.issue(std::move(job));
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override {
    check_sizes("all_gather", outputs.size(), inputs.size());
    Job job = new_job(kAllGatherCoalesced, "isthmus:all_gather_coalesced", opts, outputs);
    job.inputs = inputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      job.calls.push_back(gather_call(job, outputs[i], inputs[i]));
    }
    return issuer_.issue(std::move(job));
  }

  WorkPtr allgather(TensorLists& output_lists, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override {
    const Tensor& input = only(inputs, "all_gather");
    const Tensors& list = only_list(output_lists, "all_gather", input, getSize());
    Job job = new_job(OpType::ALLGATHER, "isthmus:all_gather", opts, list);
    job.inputs = inputs;
    job.nested = true;
    job.calls.push_back(gather_list_call(job, list, input));
    return issuer_.issue(std::move(job));
  }

  // One list of outputs for each rank, in each as many tensors as there are inputs.
  WorkPtr allgather_coalesced(TensorLists& output_lists, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override {
    check_sizes("all_gather", static_cast<std::size_t>(getSize()), output_lists.size());
    Job job = new_job(OpType::COALESCED, "isthmus:all_gather_coalesced", opts, {});
    job.inputs = inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      TensorLists list(1);
      for (const Tensors& of_rank : output_lists) {
        check_sizes("all_gather", inputs.size(), of_rank.size());
        list[0].push_back(of_rank[i]);
      }
      only_list(list, "all_gather", inputs[i], getSize());
      job.calls.push_back(gather_list_call(job, list[0], inputs[i]));
      job.outputs.insert(job.outputs.end(), list[0].begin(), list[0].end());
    }
    return issuer_.issue(std::move(job));
  }

  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override {
    Job job = new_job(OpType::_REDUCE_SCATTER_BASE, "isthmus:reduce_scatter", opts, {});
    if (issuer_.runs_inline(opts.asyncOp) && plain(output) && plain(input)) [[likely]] {
      return issuer_.run(scatter_call(job, output, input, opts.reduceOp), opts.timeout);
    }
    job.inputs = {input};
    job.outputs = {output};
    job.calls.push_back(scatter_call(job, output, input, opts.reduceOp));
    return issuer_.issue(std::move(job));
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override {
    check_sizes("reduce_scatter", outputs.size(), inputs.size());
    Job job = new_job(kReduceScatterCoalesced, "isthmus:reduce_scatter_coalesced", opts, outputs);
    job.inputs = inputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      job.calls.push_back(scatter_call(job, outputs[i], inputs[i], opts.reduceOp));
    }
    return issuer_.issue(std::move(job));
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& input_lists,
                         const c10d::ReduceScatterOptions& opts) override {
    const Tensor& output = only(outputs, "reduce_scatter");
    const Tensors& list = only_list(input_lists, "reduce_scatter", output, getSize());
    const std::int64_t width = widest(list);
    check_sizes("reduce_scatter", list[own()].numel(), output.numel());
    Job job = new_job(OpType::REDUCE_SCATTER, "isthmus:reduce_scatter", opts, {output});
    job.inputs = list;
    Call call = reduce_call(OpKind::kReduceScatter, output, width, opts.reduceOp, "reduce_scatter");
    call.input = job.blocks(list, width, true, false);
    if (output.numel() == width) {
      call.output = job.in_place(output, false, true);
    } else {
      const Tensor block = at::empty({width}, output.options());
      job.keep.push_back(block);
      job.copies.push_back({output, block.narrow(0, 0, output.numel()).view(output.sizes())});
      call.output = block.mutable_data_ptr();
    }
    job.calls.push_back(call);
    return issuer_.issue(std::move(job));
  }

  WorkPtr gather(TensorLists& output_lists, Tensors& inputs,
                 const c10d::GatherOptions& opts) override {
    const Tensor& input = only(inputs, "gather");
    check_tensor(input, "gather");
    Job job = new_job(OpType::GATHER, "isthmus:gather", opts, {});
    job.inputs = inputs;
    job.nested = true;
    Call call = move_call(OpKind::kGather, input, input.numel());
    call.root = static_cast<std::uint32_t>(opts.rootRank);
    call.input = job.in_place(input, true, false);
    if (opts.rootRank == getRank()) {
      const Tensors& list = only_list(output_lists, "gather", input, getSize());
      check_equal("gather", list, input.numel());
      job.outputs = list;
      call.output = job.blocks(list, input.numel(), false, true);
    }
    job.calls.push_back(call);
    return issuer_.issue(std::move(job));
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& input_lists,
                  const c10d::ScatterOptions& opts) override {
    const Tensor& output = only(outputs, "scatter");
    check_tensor(output, "scatter");
    Job job = new_job(OpType::SCATTER, "isthmus:scatter", opts, {output});
    Call call = move_call(OpKind::kScatter, output, output.numel());
    call.root = static_cast<std::uint32_t>(opts.rootRank);
    if (opts.rootRank == getRank()) {
      const Tensors& list = only_list(input_lists, "scatter", output, getSize());
      check_equal("scatter", list, output.numel());
      job.inputs = list;
      call.input = job.blocks(list, output.numel(), true, false);
    }
    call.output = job.in_place(output, false, true);
    job.calls.push_back(call);
    return issuer_.issue(std::move(job));
  }

  // Tensors of any lengths, each sent from where it lies.
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    check_sizes("all_to_all", static_cast<std::size_t>(getSize()), outputs.size());
    check_sizes("all_to_all", static_cast<std::size_t>(getSize()), inputs.size());
    Job job = new_job(OpType::ALLTOALL, "isthmus:all_to_all", opts, outputs);
    job.inputs = inputs;
    std::vector<Chunk> sends;
    std::vector<Chunk> receives;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      check_tensor(inputs[i], "all_to_all");
      check_tensor(outputs[i], "all_to_all");
      sends.push_back(chunk(job, inputs[i], true, false));
      receives.push_back(chunk(job, outputs[i], false, true));
    }
    return exchange(std::move(job), sends, receives);
  }

  // Without splits all blocks have one length; with them, each rank knows only its own, so that all
  // ranks must give some, or none.
  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override {
    check_tensor(input, "all_to_all");
    check_tensor(output, "all_to_all");
    check_sizes("all_to_all", input.element_size(), output.element_size());
    c10d::checkSplitSizes(input_splits, input, getSize());
    c10d::checkSplitSizes(output_splits, output, getSize());
    Job job = new_job(OpType::ALLTOALL_BASE, "isthmus:all_to_all", opts, {output});
    job.inputs = {input};
    Call call = move_call(OpKind::kAllToAll, input, input.numel() / getSize());
    call.input = job.in_place(input, true, false);
    call.output = job.in_place(output, false, true);
    if (input_splits.empty() && output_splits.empty()) {
      check_sizes("all_to_all", input.numel(), output.numel());
    } else {
      job.counts = {elements(input, input_splits), elements(output, output_splits)};
      call.counts = job.counts[0];
      call.output_counts = job.counts[1];
    }
    job.calls.push_back(call);
    return issuer_.issue(std::move(job));
  }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    const Tensor& tensor = only(tensors, "send");
    check_tensor(tensor, "send");
    Job job = new_job(OpType::SEND, "isthmus:send", c10d::AllToAllOptions(), {tensor});
    job.peer = peer;
    const Chunk piece = chunk(job, tensor, true, false);
    const CallOptions options = issuer_.options_of(job);
    return issuer_.issue(std::move(job), [&](Communicator& communicator, WorkIsthmus& work) {
      work.add(Issuer::taken(
          communicator.start_send(piece.data, piece.bytes, peer, user_tag(tag), options)));
    });
  }

  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    const Tensor& tensor = only(tensors, "recv");
    check_tensor(tensor, "recv");
    Job job = new_job(OpType::RECV, "isthmus:recv", c10d::AllToAllOptions(), {tensor});
    job.peer = peer;
    const Chunk piece = chunk(job, tensor, false, true);
    return issuer_.issue(std::move(job), [&](Communicator& communicator, WorkIsthmus& work) {
      work.add(
          Issuer::taken(communicator.start_recv(piece.data, piece.bytes, peer, user_tag(tag))));
    });
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    const Tensor& tensor = only(tensors, "recv");
    check_tensor(tensor, "recv");
    Job job =
        new_job(OpType::RECVANYSOURCE, "isthmus:recvAnySource", c10d::AllToAllOptions(), {tensor});
    const Chunk piece = chunk(job, tensor, false, true);
    return issuer_.issue(std::move(job), [&](Communicator& communicator, WorkIsthmus& work) {
      work.add(Issuer::taken(communicator.start_recv_any(piece.data, piece.bytes, user_tag(tag))));
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    if (issuer_.runs_inline(opts.asyncOp)) {
      return issuer_.run({}, opts.timeout);
    }
    Job job = new_job(OpType::BARRIER, "isthmus:barrier", opts, {});
    job.calls.emplace_back();
    return issuer_.issue(std::move(job));
  }

  void monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) override {
    issuer_.run({}, opts.timeout);
  }

  bool supportsCoalescing() const override { return true; }

  // The asynchronous operations that this thread issues until endCoalescing() get a work for them
  // all, beside their own. They start at once.
  void startCoalescing() override { issuer_.gatherer().start(); }

  WorkPtr endCoalescing() override {
    Works works;
    if (!issuer_.gatherer().end(works)) {
      refuse(Code::kInvalidArgument,
             "isthmus: a group of operations ends that this thread has not started.");
    }
    return c10::make_intrusive<WorkGroup>(getRank(), std::move(works));
  }

  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    if (hasHooks()) {
      refuse(Code::kInvalidArgument, "isthmus: this group has a completion hook already.");
    }
    // A copy of the hook would need Python's lock.
    auto shared = std::make_shared<Observer::Hook>(std::move(hook));
    onCompletionHook_ = [shared](std::shared_ptr<c10d::WorkInfo> info) {
      (*shared)(std::move(info));
    };
    issuer_.observer().set_hook(std::move(shared));
  }

  void waitForPendingWorks() override { issuer_.observer().wait_until_idle(); }

  void enableCollectivesTiming() override { issuer_.observer().enable_timing(); }

  World& world() const { return group_->world(); }

  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }  // of the CPU

  // `size` elements, one-dimensional, with undefined contents.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return pooled_tensor(world(), size, options);
  }

  // Every group counts from 0 by itself; nothing is to be agreed on.
  void setSequenceNumberForGroup() override {}

  std::uint64_t getSequenceNumberForGroup() override { return group_->whole().sequence(); }

  void setTimeout(milliseconds timeout) override {
    options_->timeout = timeout;
    group_->set_timeout_ms(timeout.count());
  }

  c10d::ErrorType getError() override {
    const std::shared_ptr<const Error> failure = group_->failure();
    if (failure == nullptr) {
      return c10d::ErrorType::SUCCESS;
    }
    return failure->code == Code::kTimeout    ? c10d::ErrorType::TIMEOUT
           : failure->code == Code::kPeerDead ? c10d::ErrorType::REMOTE_ERROR
                                              : c10d::ErrorType::COMM_ERROR;
  }

  bool supportsSplitting() const override { return true; }

  // Connections are made when they are needed.
  void eagerConnectSingleDevice(at::Device /*device*/) override {}

  // A group of some of this one's ranks, in their order here; null on the others.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<BackendOptions>& opts) override {
    const auto own_place = std::find(ranks.begin(), ranks.end(), getRank());
    if (own_place == ranks.end()) {
      return {};
    }
    GroupRequest request = request_of(*opts);
    request.rank = static_cast<int>(own_place - ranks.begin());
    request.size = static_cast<int>(ranks.size());
    const std::span<const int> members = group_->whole().world_ranks();
    for (const int rank : ranks) {
      check_rank(rank);
      request.world_ranks.push_back(members[static_cast<std::size_t>(rank)]);
    }
    return create(store, request);
  }

  // A group with ranks of other jobs, which `store` is shared with.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<BackendOptions>& opts,
                                          const int& rank, const int& size) override {
    GroupRequest request = request_of(*opts);
    request.rank = rank;
    request.size = size;
    request.apart = true;
    return create(store, request);
  }

  void abort() override { group_->abort("the process group was aborted"); }

  void shutdown() override {
    const WithoutGil no_gil;
    group_->leave("the process group was destroyed");
  }

 private:
  struct Chunk {
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  GroupRequest request_of(const BackendOptions& options) const {
    GroupRequest request;
    request.restart = restart_;
    request.timeout_ms = options.timeout.count();
    request.name = options.group_name;
    request.priority = priority_of(options);
    return request;
  }

  void check_rank(int rank) const {
    if (rank < 0 || rank >= getSize()) {
      refuse(Code::kInvalidArgument, c10::str("isthmus split: this group has ranks 0 to ",
                                              getSize() - 1, ", got ", rank, "."));
    }
  }

  std::size_t own() const { return static_cast<std::size_t>(getRank()); }

  template <typename CallOpts>
  static Job new_job(OpType type, const char* title, const CallOpts& opts, Tensors outputs) {
    Job job;
    job.type = type;
    job.title = title;
    job.timeout = opts.timeout;
    job.async = opts.asyncOp;
    job.outputs = std::move(outputs);
    return job;
  }

  Call gather_call(Job& job, const Tensor& output, const Tensor& input) const {
    check_tensor(output, "all_gather");
    check_tensor(input, "all_gather");
    check_sizes("all_gather", input.numel() * getSize(), output.numel());
    check_sizes("all_gather", input.element_size(), output.element_size());
    Call call = move_call(OpKind::kAllGather, input, input.numel());
    call.input = job.in_place(input, true, false);
    call.output = job.in_place(output, false, true);
    return call;
  }

  // Lists of unequal sizes are gathered in blocks of the largest.
  Call gather_list_call(Job& job, const Tensors& list, const Tensor& input) const {
    const std::int64_t width = widest(list);
    check_sizes("all_gather", list[own()].numel(), input.numel());
    Call call = move_call(OpKind::kAllGather, input, width);
    call.output = job.blocks(list, width, false, true);
    if (input.numel() == width) {
      call.input = job.in_place(input, true, false);
    } else {
      copy_all({{job.copies[job.copies.size() - list.size() + own()].from, input}});
      call.input = static_cast<char*>(call.output) + own() * call.count * dtype_bytes(call.dtype);
    }
    return call;
  }

  Call scatter_call(Job& job, const Tensor& output, const Tensor& input, const ReduceOp& op) const {
    check_tensor(output, "reduce_scatter");
    check_tensor(input, "reduce_scatter");
    check_sizes("reduce_scatter", output.numel() * getSize(), input.numel());
    Call call = reduce_call(OpKind::kReduceScatter, input, output.numel(), op, "reduce_scatter");
    if (input.scalar_type() != output.scalar_type()) {
      refuse(Code::kInvalidArgument, "isthmus reduce_scatter: input and output differ in type.");
    }
    call.input = job.in_place(input, true, false);
    call.output = job.in_place(output, false, true);
    return call;
  }

  static Chunk chunk(Job& job, const Tensor& tensor, bool read, bool write) {
    return {job.in_place(tensor, read, write), tensor.nbytes()};
  }

  // Elements that go to, or come from, each rank.
  std::vector<std::size_t> elements(const Tensor& tensor,
                                    const std::vector<std::int64_t>& splits) const {
    std::vector<std::size_t> lengths(static_cast<std::size_t>(getSize()));
    std::vector<std::size_t> offsets(lengths.size());
    c10d::computeLengthsAndOffsets(splits, tensor, &lengths, &offsets);
    if (!kernel_dtype(tensor.scalar_type())) {  // as move_call() has it: moved as bytes
      for (std::size_t& length : lengths) {
        length *= tensor.element_size();
      }
    }
    return lengths;
  }

  // Each rank sends one chunk to every rank and receives one from it; empty ones do not travel.
  WorkPtr exchange(Job job, const std::vector<Chunk>& sends, const std::vector<Chunk>& receives) {
    const CallOptions options = issuer_.options_of(job);
    check_sizes("exchange with itself", sends[own()].bytes, receives[own()].bytes);
    if (sends[own()].bytes > 0 && sends[own()].data != receives[own()].data) {
      std::memmove(receives[own()].data, sends[own()].data, sends[own()].bytes);
    }
    return issuer_.issue(std::move(job), [&](Communicator& communicator, WorkIsthmus& work) {
      for (int i = 1; i < getSize(); ++i) {
        const int peer = (getRank() + i) % getSize();
        const Chunk& piece = receives[static_cast<std::size_t>(peer)];
        if (piece.bytes > 0) {
          work.add(Issuer::taken(
              communicator.start_recv(piece.data, piece.bytes, peer, kInternalTag, options)));
        }
      }
      for (int i = 1; i < getSize(); ++i) {
        const int peer = (getRank() + i) % getSize();
        const Chunk& piece = sends[static_cast<std::size_t>(peer)];
        if (piece.bytes > 0) {
          work.add(Issuer::taken(
              communicator.start_send(piece.data, piece.bytes, peer, kInternalTag, options)));
        }
      }
    });
  }

  std::shared_ptr<Group> group_;
  Issuer issuer_;
  c10::intrusive_ptr<Options> options_;
  const std::int64_t restart_;
};

}  // namespace isthmus::plugin
