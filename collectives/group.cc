#include "collectives/group.h"

#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "base/env.h"
#include "base/fork.h"
#include "collectives/select.h"

namespace isthmus {
namespace {

// Buffers of fewer bytes are read by way of the group's slots in any case.
constexpr std::size_t kExposedLeast = kSlotBytes;

std::uint64_t plan_key(const Call& call, const Terms& terms, const Payload& payload) {
  // All sizes of a class run the same schedule.
  return std::uint64_t{size_class(payload.bytes)} | (static_cast<std::uint64_t>(call.op) << 8) |
         (payload.unknown ? 1ULL << 62 : 0) | (payload.mapped ? 1ULL << 61 : 0) |
         (payload.even ? 0 : 1ULL << 60) | (static_cast<std::uint64_t>(call.dtype) << 16) |
         (static_cast<std::uint64_t>(call.red_op) << 24) |
         (static_cast<std::uint64_t>(op_traits(call.op).shards ? call.shards : call.root) << 32) |
         (terms.key() << 57) | (1ULL << 63);
}

Error forked_error() {
  return Error{.code = Code::kUnsupported,
               .message =
                   "this process was forked from one that uses isthmus: its groups belong to "
                   "the parent; start processes with spawn, or initialise after the fork"};
}

}  // namespace

Group::~Group() {
  engine_.remove_channel(&channel_, Error{.code = Code::kAborted,
                                          .culprit = channel_.world_rank(),
                                          .message = "this rank destroyed the group"});
}

Status Group::check(const Call& call) const {
  if (forked_child()) [[unlikely]] {
    return forked_error();
  }
  if (call.op == OpKind::kBarrier) {
    return {};
  }
  std::string why = why_refused(call, channel_.rank, channel_.ranks());
  if (env().DETERMINISTIC && why.empty()) [[unlikely]] {
    why = why_unbinnable(call, channel_.ranks());
  }
  if (!why.empty()) [[unlikely]] {
    return Error{.code = Code::kInvalidArgument,
                 .culprit = channel_.world_rank(),
                 .message = fmt::format("rank {}: {} in group '{}': {}", channel_.world_rank(),
                                        op_kind_name(call.op), channel_.name, why)};
  }
  return {};
}

// Whether a mean is taken of operands that were divided before: where one Reduce takes all of them
// it divides before it rounds, but a sum that leaves a node must not overflow before that.
bool Group::divides_first(const Call& call) const {
  return call.red_op == RedOp::kAvg && dtype_narrow(call.dtype) && op_traits(call.op).reduces &&
         channel_.ranks() > 2 &&
         !(topology_.one_mapped_node() && channel_.ranks() <= kReduceOperandsMax);
}

// Whether what this rank contributes is not simply the caller's input.
bool Group::makes_operand(const Call& call, const Terms& terms) const {
  if (!op_traits(call.op).reduces) [[likely]] {
    return false;
  }
  return terms.binned || call.red_op == RedOp::kPremulSum || operands_of(call) != 1 ||
         divides_first(call);
}

// Points the run at what this rank contributes: its operands, multiplied, combined, and as binned
// sums where such travel, in memory of the run. The caller's stays as it is, for the call may yet
// be refused. Without the baton, as it may take long.
Status Group::make_operand(const Call& call, const Terms& terms, Run* run) {
  const std::uint32_t ranks = channel_.ranks();
  if (ranks == 1 || !makes_operand(call, terms)) [[likely]] {
    return {};
  }
  const std::size_t count = input_bytes(call, channel_.rank, ranks) / dtype_bytes(call.dtype);
  const std::size_t bytes = count * terms.element_bytes;
  {
    const BatonGuard guard(engine_.baton());
    run->operand = engine_.take_operand(bytes);
  }
  std::byte* const made = run->operand.memory.get();
  if (made == nullptr) {
    return Error{.code = Code::kResource,
                 .culprit = channel_.world_rank(),
                 .message = fmt::format("rank {}: {} in group '{}': cannot allocate {} bytes for "
                                        "the operand of {}",
                                        channel_.world_rank(), op_kind_name(call.op), channel_.name,
                                        bytes, red_op_name(call.red_op))};
  }
  const void* const only[] = {input_of(call)};
  const bool divided = !terms.binned && divides_first(call);
  const double factor = divided ? 1.0 / static_cast<double>(terms.operands) : call.factor;
  const Operands operands{
      .sources = call.inputs.empty() ? only : call.inputs.data(),
      .source_count = operands_of(call),
      .factor = divided || call.red_op == RedOp::kPremulSum ? &factor : nullptr};
  if (terms.binned) {
    bin_operands(terms.kernels, call.dtype, operands, made, count);
  } else {
    combine_operands(call.dtype, call.red_op, operands, made, count);
  }
  return {};
}

// A group of one: the reduction of one operand is a copy, but for a factor.
Status Group::run_alone(const Call& call, const Terms& terms) const {
  const std::size_t bytes = output_bytes(call, channel_.rank, channel_.ranks());
  const std::size_t count = bytes / dtype_bytes(call.dtype);
  if (operands_of(call) != 1) {
    const Operands operands{.sources = call.inputs.data(),
                            .source_count = call.inputs.size(),
                            .factor = call.red_op == RedOp::kPremulSum ? &call.factor : nullptr};
    reduce_operands(terms.binned ? &terms.kernels : nullptr, call.dtype, call.red_op, operands,
                    call.output, count);
    return {};
  }
  if (op_traits(call.op).reduces && call.red_op == RedOp::kPremulSum) {
    scale_kernel(call.dtype)(call.output, input_of(call), count, call.factor);
    return {};
  }
  if (op_traits(call.op).input != Party::kNobody && bytes != 0 && input_of(call) != call.output) {
    std::memmove(call.output, input_of(call), bytes);
  }
  return {};
}

Terms Group::terms_of(const Call& call) const {
  return {call, channel_.ranks(), env().DETERMINISTIC};
}

Payload Group::payload_of(const Call& call, const Terms& terms) const {
  const std::size_t bytes = largest_count(call) * terms.element_bytes;
  Payload payload{.bytes = bytes,
                  .rounds = dtype_rounds(call.dtype) && op_traits(call.op).reduces && !terms.binned,
                  .unknown = lengths_unknown(call),
                  .even = call.counts.empty(),
                  .shards = call.shards};
  // What is made beforehand lies in memory of the run.
  if (bytes >= kExposedLeast && payload.even && !makes_operand(call, terms)) {
    const std::uint32_t ranks = channel_.ranks();
    payload.mapped = engine_.exposes(input_of(call), input_bytes(call, channel_.rank, ranks)) &&
                     (!peers_read_output(call.op) ||
                      engine_.exposes(call.output, output_bytes(call, channel_.rank, ranks)));
  }
  return payload;
}

Result<std::shared_ptr<const Plan>> Group::build_plan(const Call& call, const Terms& terms,
                                                      const Payload& payload,
                                                      const Topology& topology,
                                                      std::string_view forced) const {
  ISTHMUS_ASSIGN(const Choice choice,
                 select_algorithm(topology, call.op, payload, forced, tuned_.get()));
  ISTHMUS_ASSIGN(Schedule schedule, choice.algorithm->build({.topology = topology,
                                                             .rank = channel_.rank,
                                                             .root = call.root,
                                                             .tuning = choice.tuning,
                                                             .shards = call.shards}));
  auto plan = std::make_shared<Plan>();
  plan->schedule = std::move(schedule);
  plan->counted_bytes = terms.binned ? terms.kernels.sum_bytes : terms.element_bytes;
  if (op_traits(call.op).reduces) {
    plan->reduce = terms.binned ? terms.kernels.add : reduce_kernel(call.dtype, call.red_op);
  }
  return std::shared_ptr<const Plan>(std::move(plan));
}

// For a run some of whose ranks have their buffers in mapped memory, and some not.
Result<std::shared_ptr<const Plan>> Group::plan_by_messages(const Run& run) const {
  const Call call{.op = static_cast<OpKind>(run.info.kind),
                  .dtype = static_cast<DType>(run.info.dtype),
                  .red_op = static_cast<RedOp>(run.info.red_op),
                  .root = run.info.root};
  const bool ranked = run.plan->schedule.partition.ranked;
  const Payload payload{.bytes = ranked ? run.geometry.block_bytes() : run.geometry.total_bytes(),
                        .rounds = dtype_rounds(call.dtype) && op_traits(call.op).reduces};
  const std::vector<int> one_node(channel_.ranks(), 0);
  ISTHMUS_ASSIGN(const Topology unmapped, Topology::make(one_node, {false}));
  return build_plan(call, Terms(call, channel_.ranks(), false), payload, unmapped, {});
}

Result<const Plan*> Group::find_plan(const Call& call, const Terms& terms) {
  const Payload payload = payload_of(call, terms);
  const std::uint64_t key = plan_key(call, terms, payload);
  if (key == last_key_) {
    return last_plan_;
  }
  const auto found = index_.find(key);
  if (found != index_.end()) {
    plans_.splice(plans_.begin(), plans_, found->second);
  } else {
    ISTHMUS_ASSIGN(
        std::shared_ptr<const Plan> plan,
        build_plan(call, terms, payload, topology_, forced_.empty() ? env().ALGO : forced_));
    plans_.push_front({.key = key, .plan = std::move(plan)});
    index_[key] = plans_.begin();
    if (plans_.size() > kPlansMax && plans_.back().plan->borrowed == 0) {
      index_.erase(plans_.back().key);
      plans_.pop_back();
    }
  }
  last_key_ = key;
  last_plan_ = plans_.front().plan.get();
  return last_plan_;
}

// Sums stay where they were made, in the in-place form of the operation; what becomes of them there
// is delivered to the caller.
void Group::bind_sums(const Call& call, const Terms& terms, Run* run) const {
  const OpTraits& traits = op_traits(call.op);
  const std::uint32_t ranks = channel_.ranks();
  std::size_t first = 0;
  if (traits.output_block) {
    first = call.counts.empty()
                ? own_block(call, channel_.rank, ranks) * call.count
                : std::accumulate(call.counts.begin(), call.counts.begin() + channel_.rank,
                                  std::size_t{0});
  }
  run->output = run->operand.memory.get() + first * terms.element_bytes;
  if (takes_part(traits.output, call, channel_.rank)) {
    const std::size_t bytes = output_bytes(call, channel_.rank, ranks);
    run->delivery = {
        .unbin = terms.kernels.unbin,
        .sums = run->output,
        .to = static_cast<std::byte*>(call.output),
        .sum_bytes = terms.kernels.sum_bytes,
        .number_bytes = terms.kernels.number_bytes,
        .left = bytes / terms.kernels.number_bytes,
        .divisor = call.red_op == RedOp::kAvg ? static_cast<std::int32_t>(terms.operands) : 1};
  }
}

void Group::bind(const Call& call, const Terms& terms, const CallOptions& options, Run* run) const {
  const std::size_t bytes = largest_count(call) * terms.element_bytes;
  run->info.signature = signature_of(call);
  run->info.kind = static_cast<std::uint8_t>(call.op);
  run->info.dtype = static_cast<std::uint8_t>(call.dtype);
  run->info.red_op = static_cast<std::uint8_t>(call.red_op);
  run->info.priority = options.priority;
  run->info.root = call.root;
  run->info.count = announced_count(call);
  run->input = run->operand.memory != nullptr ? run->operand.memory.get()
                                              : static_cast<const std::byte*>(input_of(call));
  if (terms.binned) [[unlikely]] {
    bind_sums(call, terms, run);
  } else {
    run->output = static_cast<std::byte*>(call.output);
    const bool divides = call.red_op == RedOp::kAvg && !divides_first(call);
    run->divisor = divides ? static_cast<std::int32_t>(terms.operands) : 1;
  }
  run->geometry = Geometry(run->plan->schedule.partition, bytes);
  if (!call.counts.empty()) [[unlikely]] {
    const std::size_t element = terms.element_bytes;
    run->uneven = std::make_unique<Uneven>(
        run->plan->schedule, run->geometry.unit_bytes(), starts_of(call.counts, element),
        starts_of(call.output_counts.empty() ? call.counts : call.output_counts, element));
  }
  run->timeout_ms = options.timeout_ms >= 0 ? options.timeout_ms
                                            : channel_.timeout_ms.load(std::memory_order_relaxed);
}

Status Group::run(const Call& call, const CallOptions& options) {
  ISTHMUS_TRY(check(call));
  const Terms terms = terms_of(call);
  Run run;
  ISTHMUS_TRY(make_operand(call, terms, &run));
  const BatonGuard guard(engine_.baton());
  if (channel_.ranks() == 1) {
    ++channel_.next_sequence;
    channel_.issued.fetch_add(1, std::memory_order_relaxed);
    return channel_.failure == nullptr ? run_alone(call, terms) : Status(*channel_.failure);
  }
  ISTHMUS_ASSIGN(run.plan, find_plan(call, terms));
  run.channel = &channel_;
  run.keep_waiting = options.keep_waiting ? &options.keep_waiting : nullptr;
  bind(call, terms, options, &run);
  // A synchronous run borrows its plan from the cache: other threads may use the cache while it
  // waits.
  const Plan* const borrowed = run.plan;
  ++borrowed->borrowed;
  Status status = engine_.execute(run);
  --borrowed->borrowed;
  return status;
}

Result<WorkRef> Group::start(const Call& call, const CallOptions& options) {
  ISTHMUS_TRY(check(call));
  const Terms terms = terms_of(call);
  auto run = std::make_unique<Run>();
  ISTHMUS_TRY(make_operand(call, terms, run.get()));
  const BatonGuard guard(engine_.baton());
  auto work = std::make_shared<Work>(&engine_);
  if (channel_.ranks() == 1) {
    if (channel_.failure != nullptr) {
      return *channel_.failure;
    }
    work->set_identity(channel_.next_sequence++, channel_.key, Lanes::current_depth());
    channel_.issued.fetch_add(1, std::memory_order_relaxed);
    ISTHMUS_TRY(run_alone(call, terms));
    engine_.lanes().issued(work);
    work->finish(std::nullopt);
    engine_.lanes().done(work);
    return work;
  }
  ISTHMUS_ASSIGN(run->plan, find_plan(call, terms));
  run->keep = plans_.front().plan;
  run->channel = &channel_;
  run->work = work;
  bind(call, terms, options, run.get());
  ISTHMUS_TRY(engine_.start(std::move(run)));
  return work;
}

Result<WorkRef> Group::start_message(const MessageCall& call, const CallOptions& options) {
  if (forked_child()) {
    return forked_error();
  }
  const bool any_source = call.is_recv && call.peer == MessageCall::kAnySource;
  if (!any_source && (call.peer < 0 || static_cast<std::uint32_t>(call.peer) >= channel_.ranks() ||
                      static_cast<std::uint32_t>(call.peer) == channel_.rank)) {
    return Error{
        .code = Code::kInvalidArgument,
        .culprit = channel_.world_rank(),
        .message = fmt::format("rank {}: {} names rank {}, expected another rank of the {} in "
                               "group '{}'",
                               channel_.world_rank(), call.is_recv ? "recv" : "send", call.peer,
                               channel_.ranks(), channel_.name)};
  }
  if (call.tag > kTagMax) {
    return Error{.code = Code::kInvalidArgument,
                 .culprit = channel_.world_rank(),
                 .message = fmt::format("rank {}: a message in group '{}' has tag {}, expected one "
                                        "from 0 to {}",
                                        channel_.world_rank(), channel_.name, call.tag, kTagMax)};
  }
  auto transfer = std::make_unique<Engine::Transfer>();
  auto work = std::make_shared<Work>(&engine_);
  transfer->channel = &channel_;
  transfer->peer =
      any_source ? Engine::Transfer::kAnySource : static_cast<std::uint32_t>(call.peer);
  transfer->user_tag = call.tag;
  transfer->is_recv = call.is_recv;
  transfer->data = {static_cast<const std::byte*>(call.data), call.bytes};
  transfer->into = {static_cast<std::byte*>(call.into), call.bytes};
  transfer->info.kind = static_cast<std::uint8_t>(call.is_recv ? OpKind::kRecv : OpKind::kSend);
  transfer->info.dtype = static_cast<std::uint8_t>(DType::kByte);
  transfer->info.priority = options.priority;
  transfer->info.count = call.bytes;
  transfer->timeout_ms = options.timeout_ms >= 0
                             ? options.timeout_ms
                             : channel_.timeout_ms.load(std::memory_order_relaxed);
  transfer->work = work;
  const BatonGuard guard(engine_.baton());
  ISTHMUS_TRY(engine_.admit_transfer(channel_, transfer->peer));
  transfer->tag.operation = make_operation(channel_.id(), call.tag, true);
  engine_.start_transfer(std::move(transfer));
  return work;
}

void Group::abort(std::string_view reason) {
  const BatonGuard guard(engine_.baton());
  engine_.fail_channel(channel_,
                       Error{.code = Code::kAborted,
                             .culprit = channel_.world_rank(),
                             .message = fmt::format("rank {} aborted group '{}': {}",
                                                    channel_.world_rank(), channel_.name, reason)},
                       true);
}

std::shared_ptr<const Error> Group::failure() {
  const BatonGuard guard(engine_.baton());
  return channel_.failure;
}

std::string Group::algorithm_of(const Call& call) {
  const BatonGuard guard(engine_.baton());
  const Result<const Plan*> plan = find_plan(call, terms_of(call));
  return plan.ok() ? plan.value()->schedule.algorithm : plan.error().message;
}

void Group::force_algorithm(std::string_view name) {
  const BatonGuard guard(engine_.baton());
  forced_ = name;
  last_key_ = 0;
  last_plan_ = nullptr;
  // What runs keeps its plan: it borrowed or shares it.
  for (auto at = plans_.begin(); at != plans_.end();) {
    if (at->plan->borrowed == 0) {
      index_.erase(at->key);
      at = plans_.erase(at);
    } else {
      ++at;
    }
  }
}

}  // namespace isthmus
