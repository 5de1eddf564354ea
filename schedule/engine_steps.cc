// How the engine executes steps.

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/copy.h"
#include "schedule/diagnosis.h"
#include "schedule/engine.h"

namespace isthmus {
namespace {

// The bytes of a Copy step. What is collected into results that no cache holds is streamed.
void move_bytes(const Run& run, const Step& step, std::byte* dst, const std::byte* src,
                std::size_t bytes) {
  const bool collects = step.src.space == Space::kStage && step.dst.space == Space::kOutput;
  if (collects && run.geometry.total_bytes() * run.channel->peers.size() >= kStreamingFootprint)
      [[unlikely]] {
    copy_bytes_streaming(dst, src, bytes);
  } else {
    copy_bytes(dst, src, bytes);
  }
}

}  // namespace

bool Engine::advance(Run& run) {
  if (run.state != Run::State::kActive) {
    return false;
  }
  return run.plan->schedule.in_order ? advance_in_order(run) : advance_dataflow(run);
}

// Runs steps until one has to wait. True when any step was done.
bool Engine::advance_in_order(Run& run) {
  const std::vector<Step>& steps = run.plan->schedule.steps;
  const std::uint32_t first = run.next;
  while (run.next < steps.size()) {
    if (!run_local(run, steps[run.next])) {
      return run.next != first;
    }
    ++run.next;
  }
  if (deliver(run)) {
    complete(run);
  }
  return true;
}

// Binned sums become numbers. True when all have; else so many did that a pass over other runs is
// due.
bool Engine::deliver(Run& run) {
  constexpr std::size_t kNumbersAtOnce = std::size_t{1} << 18;
  Delivery& delivery = run.delivery;
  if (delivery.unbin == nullptr) [[likely]] {
    return true;
  }
  const std::size_t some = std::min(delivery.left, kNumbersAtOnce);
  delivery.unbin(delivery.to, delivery.sums, some, delivery.divisor);
  delivery.sums += some * delivery.sum_bytes;
  delivery.to += some * delivery.number_bytes;
  delivery.left -= some;
  return delivery.left == 0;
}

// One step that needs no transport. False when it has to wait.
bool Engine::run_local(Run& run, const Step& step) {
  switch (step.kind) {
    case StepKind::kCopy:
      return copy(run, step);
    case StepKind::kReduce:
      reduce(run, step);
      return true;
    case StepKind::kPublish:
      publish(run, step);
      return true;
    case StepKind::kAwait:
      return step.line == kAnnounceLine ? await_announcements(run, step) : await(run, step);
    case StepKind::kSend:
    case StepKind::kRecv:
      break;
  }
  ISTHMUS_CHECK(false, "a message step in an in-order schedule");
}

std::byte* Engine::mapped(Run& run, Space space, std::uint32_t local) const {
  switch (space) {
    case Space::kLine:
      return run.channel->peers[local]
          .block->announcements[run.sequence % kAnnounceRing]
          .payload.data();
    case Space::kSlot:
      return run.channel->peers[local].block->slots[run.sequence % kSlotRing].data();
    default:
      return run.stage[local];
  }
}

std::size_t Engine::input_offset(const Run& run, std::uint32_t at) {
  return run.uneven == nullptr ? run.geometry.offset(at) : run.uneven->input_offset(at);
}

std::size_t Engine::length(const Run& run, const Step& step) {
  return run.uneven == nullptr ? run.geometry.length(step.begin, step.end)
                               : run.uneven->length(step);
}

std::byte* Engine::locate(Run& run, const Place& place) const {
  switch (place.space) {
    case Space::kInput:
      // Steps never write the input; one pointer type keeps the step loop simple.
      return const_cast<std::byte*>(run.input) + input_offset(run, place.at);
    case Space::kOutput:
      return run.output + (run.uneven == nullptr ? run.geometry.offset(place.at)
                                                 : run.uneven->output_offset(place.at));
    case Space::kScratch:
      return run.scratch.memory.get() + std::size_t{place.at} * run.geometry.unit_bytes();
    case Space::kNone:
      return nullptr;
    case Space::kPeerInput:
    case Space::kPeerOutput:
      ISTHMUS_CHECK(false, "a peer's buffer is read by copy() and operands() only");
    default:
      return mapped(run, place.space, place.local) +
             std::size_t{place.at} * run.geometry.unit_bytes();
  }
}

// A position in the exposed buffer of another rank. Blocks have one length where any is exposed.
const std::byte* Engine::exposed(const Run& run, const Place& place) {
  const std::byte* const base =
      place.space == Space::kPeerInput ? run.peer_input[place.local] : run.peer_output[place.local];
  return base + run.geometry.offset(place.at);
}

// False when its source cannot be read any more: the run is over, or will be.
bool Engine::copy(Run& run, const Step& step) {
  const std::size_t bytes = length(run, step);
  std::byte* const dst = locate(run, step.dst);
  const bool peers = is_exposed(step.src.space);
  if (peers && run.plan->schedule.exposure == Exposure::kPulled) {
    return bytes == 0 || pull(run, step, dst, bytes);
  }
  const std::byte* const src = peers ? exposed(run, step.src) : locate(run, step.src);
  if (bytes != 0 && dst != src) {
    move_bytes(run, step, dst, src, bytes);
  }
  return true;
}

bool Engine::pull(Run& run, const Step& step, std::byte* dst, std::size_t bytes) {
  Channel& channel = *run.channel;
  const int world_rank = channel.peers[step.src.local].world_rank;
  const Status pulled = node_->pull(world_rank, exposed(run, step.src), dst, bytes);
  if (pulled.ok()) [[likely]] {
    return true;
  }
  const auto group_rank = static_cast<std::uint32_t>(
      std::find(channel.world_ranks.begin(), channel.world_ranks.end(), world_rank) -
      channel.world_ranks.begin());
  // A rank whose operation failed gives its buffer back, and may do so before this rank has heard
  // why: the cause, when it comes in time, is the error.
  if (!lost(channel, group_rank, pulled.error().code)) {
    suspect(world_rank, &channel, pulled.error());
  }
  return false;
}

// Collects the operands of a reduction, in order. Returns how many.
std::uint32_t Engine::operands(Run& run, const Step& step, std::byte* dst,
                               const void** sources) const {
  if (step.count == 0) {
    sources[step.src_first ? 1 : 0] = dst;
    sources[step.src_first ? 0 : 1] = locate(run, step.src);
    return 2;
  }
  const std::size_t unit = run.geometry.unit_bytes();
  const std::byte* const own = run.input + input_offset(run, step.begin);
  std::uint32_t count = 0;
  if (step.src.space == Space::kScratch) {
    const std::size_t stride = (step.end - step.begin) * unit;
    const std::byte* next = locate(run, step.src);
    for (std::uint32_t i = 0; i < step.count; ++i, next += stride) {
      sources[count++] = step.own_input && i == step.src.local ? own : next;
    }
    return count;
  }
  if (is_exposed(step.src.space)) {
    for (std::uint32_t i = step.src.local; i < step.src.local + step.count; ++i) {
      sources[count++] =
          i == run.channel->local ? own : exposed(run, {step.src.space, i, step.src.at});
    }
    return count;
  }
  const std::size_t offset = step.src.at * unit;
  for (std::uint32_t i = step.src.local; i < step.src.local + step.count; ++i) {
    sources[count++] =
        step.own_input && i == run.channel->local ? own : mapped(run, step.src.space, i) + offset;
  }
  return count;
}

void Engine::reduce(Run& run, const Step& step) {
  const std::size_t bytes = length(run, step);
  if (bytes == 0) {
    return;
  }
  if (step.dst.local == kEveryone) {
    reduce_to_all(run, step, bytes);
    return;
  }
  const void* sources[kReduceSourcesMax];
  std::byte* const dst = locate(run, step.dst);
  const std::uint32_t count = operands(run, step, dst, sources);
  run.plan->reduce(dst, sources, static_cast<int>(count), bytes / run.plan->counted_bytes,
                   step.finish ? run.divisor : 1);
}

// Block by block: the result is in the first-level cache when it goes to the others.
void Engine::reduce_to_all(Run& run, const Step& step, std::size_t bytes) {
  constexpr std::size_t kBlockBytes = 8192;
  const std::uint32_t local = run.channel->local;
  const std::size_t element = run.plan->counted_bytes;
  const std::size_t offset = run.geometry.offset(step.dst.at);
  std::byte* const own = run.output + offset;
  const void* sources[kReduceSourcesMax];
  const std::uint32_t count = operands(run, step, own, sources);
  for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
    const std::size_t some = std::min(kBlockBytes, bytes - at);
    run.plan->reduce(own + at, sources, static_cast<int>(count), some / element,
                     step.finish ? run.divisor : 1);
    for (std::uint32_t i = 0; i < count; ++i) {
      sources[i] = static_cast<const std::byte*>(sources[i]) + some;
      if (i != local) {
        copy_bytes(run.peer_output[i] + offset + at, own + at, some);
      }
    }
  }
}

void Engine::ring_sleepers(const Channel& channel) const {
  for (std::size_t i = 0; i < channel.peers.size(); ++i) {
    const MappedPeer& peer = channel.peers[i];
    // A sleeper that sets its flag just after this look finds the line itself within kSleepMs.
    if (i != channel.local && peer.bell != nullptr &&
        peer.bell->sleeping.load(std::memory_order_relaxed) != 0) {
      ShmNode::ring(peer);
    }
  }
}

void Engine::publish(Run& run, const Step& step) {
  Channel& channel = *run.channel;
  const std::uint32_t ring = run.sequence % kAnnounceRing;
  if (step.line == kAnnounceLine) {
    Announcement& mine = channel.own->announcements[ring];
    const Exposure exposure = run.plan->schedule.exposure;
    mine.stage = announced_stage(static_cast<std::uint32_t>(exposure),
                                 run.lease ? run.lease->offset / kCacheLine : 0);
    if (exposure != Exposure::kNone) {
      expose(run, &mine);
    }
    mine.finished = channel.finished;
    mine.key.store(announce_key(run.sequence, run.info.signature), std::memory_order_release);
  } else {
    channel.own->progress[ring][step.line - 1U].value.store(announce_key(run.sequence, step.value),
                                                            std::memory_order_release);
  }
  ring_sleepers(channel);
}

bool Engine::await_announcements(Run& run, const Step& step) {
  Channel& channel = *run.channel;
  const std::uint32_t ring = run.sequence % kAnnounceRing;
  const std::uint64_t wanted = announce_key(run.sequence, run.info.signature);
  const std::uint32_t last = step.peer + step.count;
  for (std::uint32_t i = std::max(step.peer, run.await_from); i < last; ++i) {
    if (i == channel.local) {
      continue;
    }
    MappedPeer& peer = channel.peers[i];
    const Announcement& theirs = peer.block->announcements[ring];
    const std::uint64_t key = theirs.key.load(std::memory_order_acquire);
    if (key != wanted) {
      if (key >> 32 == run.sequence && run.mismatch_since_ns == 0) [[unlikely]] {
        run.mismatch_since_ns = monotonic_ns();
        settle_mismatch(run, run.mismatch_since_ns);
      }
      run.await_from = i;
      return false;
    }
    run.stage[i] = peer.stage + std::size_t{stage_line(theirs.stage)} * kCacheLine;
    if (!note_exposed(run, i, theirs)) [[unlikely]] {
      return false;
    }
    // Operations may be announced in another order than they end in.
    if (static_cast<std::int32_t>(theirs.finished - peer.finished) > 0) {
      peer.finished = theirs.finished;
    }
  }
  run.await_from = 0;
  if (!run.alike) [[unlikely]] {
    fall_back(run);
    return false;
  }
  return true;
}

// Tells the ranks of the node where this rank's buffers are.
void Engine::expose(const Run& run, Announcement* mine) {
  ExposedBuffers buffers;
  buffers.input = reinterpret_cast<std::uintptr_t>(run.input);
  buffers.output = reinterpret_cast<std::uintptr_t>(run.output);
  if (run.plan->schedule.exposure == Exposure::kMapped) {
    const auto heap = reinterpret_cast<std::uintptr_t>(run.channel->peers[run.channel->local].heap);
    buffers.input -= heap;
    buffers.output -= heap;
  }
  std::memcpy(mine->payload.data(), &buffers, sizeof buffers);
}

// Learns where a peer's buffers are. False, and the run is over, when they cannot be there.
bool Engine::note_exposed(Run& run, std::uint32_t local, const Announcement& theirs) {
  const auto exposure = static_cast<std::uint32_t>(run.plan->schedule.exposure);
  if (stage_exposure(theirs.stage) != exposure) [[unlikely]] {
    run.alike = false;
    return true;
  }
  if (exposure == 0) {
    return true;
  }
  ExposedBuffers buffers;
  std::memcpy(&buffers, theirs.payload.data(), sizeof buffers);
  if (run.plan->schedule.exposure == Exposure::kPulled) {
    run.peer_input[local] = std::bit_cast<const std::byte*>(buffers.input);
    run.peer_output[local] = std::bit_cast<std::byte*>(buffers.output);
    return true;
  }
  const MappedPeer& peer = run.channel->peers[local];
  const auto outside = [&](Space space, std::uint64_t offset) {
    const std::size_t bytes = run.geometry.offset(run.plan->schedule.caller_marks(space));
    return bytes > peer.heap_bytes || offset > peer.heap_bytes - bytes;
  };
  if (peer.heap == nullptr || outside(Space::kInput, buffers.input) ||
      (peers_read_output(run.plan->schedule.op) && outside(Space::kOutput, buffers.output))) {
    fail_channel(*run.channel, exposed_error(*run.channel, peer), true);
    return false;
  }
  run.peer_input[local] = peer.heap + buffers.input;
  run.peer_output[local] = peer.heap + buffers.output;
  return true;
}

// Not every rank exposes its buffers alike, and each has seen that: all go on by messages.
void Engine::fall_back(Run& run) {
  Result<std::shared_ptr<const Plan>> plan = run.channel->by_messages(run);
  if (!plan.ok()) {
    fail_channel(*run.channel, plan.error(), true);
    return;
  }
  scratch_.give(std::move(run.scratch));
  const Partition& before = run.plan->schedule.partition;
  const std::size_t bytes = before.ranked ? run.geometry.block_bytes() : run.geometry.total_bytes();
  run.keep = std::move(plan).value();
  run.plan = run.keep.get();
  run.geometry = Geometry(run.plan->schedule.partition, bytes);
  run.alike = true;
  ++messaging_;
  prepare_dataflow(run);
  if (run.plan->schedule.scratch_units != 0) {
    run.scratch = scratch_.take(scratch_bytes(run));
    if (run.scratch.memory == nullptr) {
      fail_channel(*run.channel, scratch_error(run, scratch_bytes(run)), true);
    }
  }
}

bool Engine::await(Run& run, const Step& step) {
  Channel& channel = *run.channel;
  const std::uint32_t ring = run.sequence % kAnnounceRing;
  const std::uint32_t last = step.peer + step.count;
  for (std::uint32_t i = std::max(step.peer, run.await_from); i < last; ++i) {
    if (i == channel.local) {
      continue;
    }
    const std::uint64_t value = channel.peers[i].block->progress[ring][step.line - 1U].value.load(
        std::memory_order_acquire);
    if (value >> 32 != run.sequence || static_cast<std::uint32_t>(value) < step.value) {
      run.await_from = i;
      return false;
    }
  }
  run.await_from = 0;
  return true;
}

bool Engine::prepare_dataflow(Run& run) {
  const Schedule& schedule = run.plan->schedule;
  run.left = static_cast<std::uint32_t>(schedule.steps.size());
  run.waits = schedule.wait_count;
  run.posted.assign(schedule.steps.size(), false);
  // The last ready step is run first: filled backwards, so that steps start in their order.
  for (std::uint32_t i = run.left; i-- > 0;) {
    if (run.waits[i] == 0) {
      run.ready.push_back(i);
    }
  }
  return true;
}

void Engine::complete_step(Run& run, std::uint32_t index) {
  const Schedule& schedule = run.plan->schedule;
  --run.left;
  for (std::uint32_t k = schedule.release_begin[index + 1]; k-- > schedule.release_begin[index];) {
    const std::uint32_t next = schedule.releases[k];
    if (--run.waits[next] == 0) {
      run.ready.push_back(next);
    }
  }
}

// Posts a message step. True when it was posted or done; false when the lane is busy.
bool Engine::post(Run& run, std::uint32_t index) {
  Channel& channel = *run.channel;
  const Step& step = run.plan->schedule.steps[index];
  const Tag tag{.operation = make_operation(channel.id(), run.sequence, false),
                .message = step.value};
  const std::size_t bytes = length(run, step);
  Endpoint& lane = endpoint(channel, step.peer);
  const Token token{.owner = &run, .step = index};
  Result<Endpoint::Post> posted =
      step.kind == StepKind::kSend
          ? lane.post_send(tag, run.info, {locate(run, step.src), bytes}, token)
          : lane.post_recv(tag, run.info, {locate(run, step.dst), bytes}, token);
  if (!posted.ok()) {
    if (!lost(channel, step.peer, posted.error().code)) {
      fail(run, describe_failure(run, index, posted.error()));
    }
    return false;
  }
  if (*posted == Endpoint::Post::kBusy) {
    return false;
  }
  if (*posted == Endpoint::Post::kDone) {
    complete_step(run, index);
  } else {
    run.posted[index] = true;
  }
  return true;
}

bool Engine::advance_dataflow(Run& run) {
  bool moved = false;
  const auto retry = [&](std::vector<std::uint32_t>* list) {
    run.ready.insert(run.ready.end(), list->begin(), list->end());
    list->clear();
  };
  retry(&run.awaiting);
  retry(&run.busy);
  while (run.state == Run::State::kActive && !run.ready.empty()) {
    const std::uint32_t index = run.ready.back();
    run.ready.pop_back();
    const Step& step = run.plan->schedule.steps[index];
    if (step.kind == StepKind::kSend || step.kind == StepKind::kRecv) {
      if (post(run, index)) {
        moved = true;
      } else {
        run.busy.push_back(index);
      }
      continue;
    }
    run.await_from = 0;
    if (run_local(run, step)) {
      complete_step(run, index);
      moved = true;
      if (runs_.front()->info.priority < run.info.priority) {
        break;  // one at a time: what comes for the other run is looked at in between
      }
    } else if (run.state == Run::State::kActive) {
      run.awaiting.push_back(index);
    }
  }
  if (run.state == Run::State::kActive && run.left == 0) {
    if (deliver(run)) {
      complete(run);
    }
    moved = true;
  }
  return moved;
}

Endpoint& Engine::endpoint(Channel& channel, std::uint32_t peer) {
  Endpoint*& lane = channel.endpoints[peer];
  if (lane == nullptr) {
    const int world_rank = channel.world_ranks[peer];
    lane = &transport_to(world_rank).endpoint(world_rank);
  }
  return *lane;
}

// The first of the transports that reaches the rank; the last one reaches all.
Transport& Engine::transport_to(int world_rank) const {
  for (Transport* transport : transports_) {
    if (transport->reaches(world_rank)) {
      return *transport;
    }
  }
  return *transports_.back();
}

}  // namespace isthmus
