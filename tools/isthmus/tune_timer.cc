#include "tools/isthmus/tune_timer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "base/clock.h"
#include "transport/file_store.h"

namespace isthmus {
namespace {

// Memory of all ranks together, so that a large node is not filled.
constexpr std::size_t kMemoryBytes = std::size_t{1} << 30;
constexpr std::size_t kBufferBytesMax = std::size_t{64} << 20;

// Of one time, in batches that are short against a time slice: what else runs then takes part in
// few of them, not a little in all. Ranks that share processors lag and catch up: longer ones.
constexpr double kTimeUs = 8000.0;
constexpr double kTimeSharedUs = 30000.0;
constexpr int kBatches = 25;
constexpr int kBatchesShared = 11;
constexpr int kBatchesMin = 5;
constexpr int kIterationsMax = 20000;

// On a busy machine every meeting of the ranks may take a time slice: then fewer batches do.
constexpr std::int64_t kWallMost = 120'000'000;  // ns

constexpr std::size_t kWrittenBytes = 4096;

// Aligned as buffers of programs are, and touched.
constexpr std::size_t kPage = 4096;

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

Result<std::unique_ptr<World>> join_to_measure(const Member& member) {
  ISTHMUS_ASSIGN(const std::unique_ptr<FileStore> store, FileStore::create(member.store));
  WorldOptions options;
  options.rank = member.rank;
  options.size = member.size;
  options.incarnation = "tune";
  options.tuned = false;
  ISTHMUS_ASSIGN(std::unique_ptr<World> world, World::create(options, *store));
  member.joined();
  return world;
}

TuneTimer::TuneTimer(World& world, const Member& member, double sharing)
    : world_(world),
      group_(world.communicator()),
      member_(member),
      shared_(sharing > 1.0),
      buffer_bytes_(
          std::min(kBufferBytesMax, kMemoryBytes / 4 / static_cast<std::size_t>(member.size)) &
          ~(kPage - 1)) {}

TuneTimer::Memory TuneTimer::allocate() const {
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kPage, buffer_bytes_)));
  if (memory != nullptr) {
    std::memset(memory.get(), 0, buffer_bytes_);
  }
  return memory;
}

Status TuneTimer::prepare() {
  input_ = allocate();
  output_ = allocate();
  if (input_ == nullptr || output_ == nullptr) {
    return Error{.code = Code::kResource,
                 .message = fmt::format("cannot allocate two buffers of {} bytes", buffer_bytes_)};
  }
  for (MemoryRegion* region : {&mapped_input_, &mapped_output_}) {
    ISTHMUS_ASSIGN(*region, world_.allocate(buffer_bytes_));
    std::memset(region->data(), 0, buffer_bytes_);
  }
  std::int32_t all = mapped_input_.mapped() && mapped_output_.mapped() ? 1 : 0;
  ISTHMUS_TRY(group_.all_reduce(&all, &all, 1, DType::kInt32, RedOp::kMin));
  mapped_ = all == 1;
  return {};
}

TuneTimer::Buffers TuneTimer::mapped() const {
  return mapped_ ? Buffers{mapped_input_.data(), mapped_output_.data()} : Buffers{};
}

// In place: all_reduce, and all_gather into the place of its input.
Call TuneTimer::call_of(OpKind op, std::size_t bytes, const Buffers& buffers) const {
  Call call;
  call.op = op;
  call.dtype = DType::kFloat32;
  call.input = buffers.input;
  call.output = buffers.output;
  call.count = bytes / sizeof(float);
  if (op == OpKind::kBroadcast || op == OpKind::kAllReduce) {
    call.input = call.output;
  } else if (op == OpKind::kAllGather) {
    call.input = buffers.output + static_cast<std::size_t>(member_.rank) * bytes;
  }
  return call;
}

bool TuneTimer::runs_by(std::string_view algorithm, const Call& call) {
  group_.force_algorithm(algorithm);
  const bool runs = group_.algorithm_of(call) == algorithm;
  group_.force_algorithm("");
  return runs;
}

// Rank 0's number for all.
Result<int> TuneTimer::agree(int value) {
  std::int32_t agreed = value;
  ISTHMUS_TRY(group_.broadcast(&agreed, 1, DType::kInt32, 0));
  return agreed;
}

Result<double> TuneTimer::time_us(std::string_view algorithm, const Call& call) {
  group_.force_algorithm(algorithm);
  ISTHMUS_TRY(batch_us(call, 1));
  ISTHMUS_ASSIGN(const double first, batch_us(call, 1));
  const double once = std::max(first, 0.05);
  const double time = shared_ ? kTimeSharedUs : kTimeUs;
  const int most = shared_ ? kBatchesShared : kBatches;
  ISTHMUS_ASSIGN(const int calls,
                 agree(std::clamp(static_cast<int>(time / most / once), 1, kIterationsMax)));
  const int wanted = std::clamp(static_cast<int>(time / once), kBatchesMin, most);
  const std::int64_t begin = monotonic_ns();
  std::vector<double> times;
  int more = 1;
  while (more != 0) {
    ISTHMUS_ASSIGN(const double us, batch_us(call, calls));
    times.push_back(us);
    const int done = static_cast<int>(times.size());
    const bool late = done >= kBatchesMin && monotonic_ns() - begin > kWallMost;
    ISTHMUS_ASSIGN(more, agree(done < wanted && !late ? 1 : 0));
  }
  member_.alive();
  group_.force_algorithm("");
  ISTHMUS_TRY(
      group_.all_reduce(times.data(), times.data(), times.size(), DType::kFloat64, RedOp::kMax));
  return median(std::move(times));
}

// Mean of so many calls, as this rank sees them.
Result<double> TuneTimer::batch_us(const Call& call, int calls) {
  const std::size_t bytes = input_bytes(call, static_cast<std::uint32_t>(member_.rank),
                                        static_cast<std::uint32_t>(member_.size));
  const bool apart = bytes >= kWrittenBytes;
  double us = 0.0;
  for (int i = 0; i < calls; i += apart ? 1 : calls) {
    if (apart) {
      std::memset(const_cast<void*>(call.input), 0, bytes);
      ISTHMUS_TRY(group_.barrier());
    }
    const std::int64_t begin = monotonic_ns();
    for (int k = 0; k < (apart ? 1 : calls); ++k) {
      ISTHMUS_TRY(group_.run(call));
    }
    us += static_cast<double>(monotonic_ns() - begin) * 1e-3;
  }
  return us / calls;
}

}  // namespace isthmus
