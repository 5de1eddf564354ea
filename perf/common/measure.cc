#include "perf/common/measure.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"

namespace isthmus {
namespace {

constexpr std::size_t kPage = 4096;

// Batches of one measurement: their spread is shown beside the mean.
constexpr int kBatches = 10;

// How long an automatic number of iterations is to take, and its bounds.
constexpr double kRowUs = 50'000.0;
constexpr double kIterationsMin = 20.0;
constexpr double kIterationsMax = 20'000.0;

// Byte that an output holds before a checked run: a result that was not written is wrong.
constexpr int kUnwritten = 0xA5;

std::string red_op_text(OpKind op, RedOp red_op) {
  if (!op_traits(op).reduces) {
    return "none";
  }
  std::string text;
  for (const char c : red_op_name(red_op)) {
    text += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Measure>> Measure::create(Communicator& group, const PerfOptions& options,
                                                 std::function<void()> alive) {
  std::unique_ptr<Measure> measure = std::make_unique<Measure>(group, options, std::move(alive));
  std::size_t most = 0;
  for (const DType dtype : options.dtypes) {
    most = std::max(most, measure->rounded(options.bytes_max, dtype));
  }
  const std::size_t bytes = (most + kPage - 1) / kPage * kPage;
  for (Memory* memory : {&measure->input_, &measure->output_}) {
    memory->reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
    if (*memory == nullptr) {
      return Error{.code = Code::kResource,
                   .message = fmt::format("cannot allocate two buffers of {} bytes; lower "
                                          "--maxbytes",
                                          bytes)};
    }
    std::memset(memory->get(), 0, bytes);
  }
  return measure;
}

std::size_t Measure::rounded(std::uint64_t bytes, DType dtype) const {
  const std::size_t whole = parts_of(options_.op, ranks()) * dtype_bytes(dtype);
  return std::max<std::size_t>(static_cast<std::size_t>(bytes) / whole, 1) * whole;
}

// In place, a block stands where it has to in the whole data.
Measure::Asked Measure::ask(std::size_t count, DType dtype, RedOp red_op, bool in_place) const {
  const OpTraits& traits = op_traits(options_.op);
  Asked asked{.call = {.op = options_.op,
                       .dtype = dtype,
                       .red_op = red_op,
                       .root = static_cast<std::uint32_t>(options_.root),
                       .count = count,
                       .factor = Pattern::kFactor},
              .input = input_.get(),
              .output = output_.get()};
  if (in_place) {
    const std::size_t own = rank() * count * dtype_bytes(dtype);
    if (traits.output_block) {
      asked.output = input_.get() + own;
    } else {
      asked.input = output_.get() + (traits.input_block ? own : 0);
    }
  }
  asked.call.input = asked.input;
  asked.call.output = asked.output;
  return asked;
}

// Fills what the call reads, and spoils what it only writes.
void Measure::prepare(const Asked& asked, const Pattern& pattern, std::size_t salt) const {
  const Call& call = asked.call;
  const OpTraits& traits = op_traits(call.op);
  const auto me = static_cast<std::uint32_t>(group_.rank());
  const auto size = static_cast<std::uint32_t>(group_.size());
  std::memset(asked.output, kUnwritten, output_bytes(call, me, size));
  if (takes_part(traits.input, call)) {
    pattern.fill(asked.input, group_.rank(), traits.input_block ? rank() * call.count : 0,
                 input_bytes(call, me, size) / dtype_bytes(call.dtype), salt);
  } else if (call.op == OpKind::kBroadcast && group_.rank() == options_.root) {
    pattern.fill(asked.output, group_.rank(), 0, call.count, salt);
  }
}

std::size_t Measure::count_wrong(const Asked& asked, const Pattern& pattern,
                                 std::size_t salt) const {
  const Call& call = asked.call;
  const OpTraits& traits = op_traits(call.op);
  if (call.op == OpKind::kSend) {
    return pattern.count_wrong_of_rank(asked.output, before(), 0, call.count, salt);
  }
  if (!takes_part(traits.output, call)) {
    return 0;
  }
  const std::size_t own = traits.ranked ? rank() * call.count : 0;
  if (traits.reduces) {
    return pattern.count_wrong_reduced(asked.output, own, call.count, salt);
  }
  if (traits.from_root()) {
    return pattern.count_wrong_of_rank(asked.output, options_.root, own, call.count, salt);
  }
  const std::size_t block_bytes = call.count * dtype_bytes(call.dtype);
  std::size_t wrong = 0;
  for (std::size_t source = 0; source < ranks(); ++source) {
    wrong += pattern.count_wrong_of_rank(
        asked.output + source * block_bytes, static_cast<int>(source),
        traits.input_block ? source * call.count : own, call.count, salt);
  }
  return wrong;
}

int Measure::before() const {
  return (group_.rank() + group_.size() - 1) % group_.size();
}

// One operation.
Status Measure::once(const Call& call) {
  if (call.op != OpKind::kSend) [[likely]] {
    return group_.run(call);
  }
  const std::size_t bytes = call.count * dtype_bytes(call.dtype);
  const int next = (group_.rank() + 1) % group_.size();
  ISTHMUS_ASSIGN(const WorkRef received, group_.start_recv(call.output, bytes, before(), 0));
  ISTHMUS_ASSIGN(const WorkRef sent, group_.start_send(call.input, bytes, next, 0));
  ISTHMUS_TRY(sent->wait(Deadline()));
  return received->wait(Deadline());
}

// Wrong elements of all checked runs, over all ranks.
Result<std::int64_t> Measure::check(const Asked& asked, const Pattern& pattern) {
  std::int64_t wrong = 0;
  for (int run = 0; run < options_.checks; ++run) {
    const std::size_t salt = static_cast<std::size_t>(run) * 17 % Pattern::kPeriod;
    prepare(asked, pattern, salt);
    ISTHMUS_TRY(once(asked.call));
    wrong += static_cast<std::int64_t>(count_wrong(asked, pattern, salt));
    alive_();
  }
  ISTHMUS_TRY(group_.all_reduce(&wrong, &wrong, 1, DType::kInt64, RedOp::kSum));
  return wrong;
}

// All ranks agree on the number that the fastest would take.
Result<int> Measure::iterations_for(const Call& call) {
  if (options_.iterations > 0) {
    return options_.iterations;
  }
  constexpr int kProbes = 2;
  const std::int64_t begin = monotonic_ns();
  for (int i = 0; i < kProbes; ++i) {
    ISTHMUS_TRY(once(call));
  }
  const double once_us = static_cast<double>(monotonic_ns() - begin) / (1e3 * kProbes);
  double wanted = std::clamp(kRowUs / std::max(once_us, 1e-3), kIterationsMin, kIterationsMax);
  ISTHMUS_TRY(group_.all_reduce(&wanted, &wanted, 1, DType::kFloat64, RedOp::kMin));
  return static_cast<int>(wanted);
}

Result<Measure::Times> Measure::time(const Call& call, int iterations) {
  const int batches = std::min(iterations, kBatches);
  Times times;
  times.least = std::numeric_limits<double>::max();
  ISTHMUS_TRY(group_.barrier());
  const std::int64_t begin = monotonic_ns();
  std::int64_t before = begin;
  for (int batch = 0; batch < batches; ++batch) {
    const int size = iterations / batches + (batch < iterations % batches ? 1 : 0);
    for (int i = 0; i < size; ++i) {
      ISTHMUS_TRY(once(call));
    }
    const std::int64_t now = monotonic_ns();
    const double batch_us = static_cast<double>(now - before) / (1e3 * size);
    times.least = std::min(times.least, batch_us);
    times.most = std::max(times.most, batch_us);
    before = now;
    alive_();
  }
  times.mean = static_cast<double>(before - begin) / (1e3 * iterations);
  return times;
}

Status Measure::combine(const Times& mine, PerfRow* row) {
  std::vector<Times> all(ranks());
  ISTHMUS_TRY(
      group_.all_gather(&mine, all.data(), sizeof(Times) / sizeof(double), DType::kFloat64));
  double least = mine.mean;
  double most = mine.mean;
  double sum = 0.0;
  row->time_us_min = mine.least;
  row->time_us_max = mine.most;
  for (const Times& times : all) {
    least = std::min(least, times.mean);
    most = std::max(most, times.mean);
    sum += times.mean;
    row->time_us_min = std::min(row->time_us_min, times.least);
    row->time_us_max = std::max(row->time_us_max, times.most);
  }
  const std::array<double, 4> by_mode = {all.front().mean, sum / static_cast<double>(all.size()),
                                         least, most};
  row->time_us = by_mode[static_cast<std::size_t>(options_.average)];
  return {};
}

Result<PerfRow> Measure::row(std::uint64_t bytes, DType dtype, RedOp red_op, bool in_place) {
  PerfRow row;
  row.op = options_.op;
  row.dtype = dtype;
  row.red_op = red_op_text(options_.op, red_op);
  row.ranks = group_.size();
  row.bytes = rounded(bytes, dtype);
  row.count = row.bytes / (parts_of(options_.op, ranks()) * dtype_bytes(dtype));
  row.root = op_traits(options_.op).rooted ? options_.root : -1;
  row.in_place = in_place;
  const Asked asked = ask(row.count, dtype, red_op, in_place);
  const Call& call = asked.call;
  row.algorithm = call.op == OpKind::kSend ? "messages" : group_.algorithm_of(call);
  const Pattern pattern(options_.op, dtype, red_op, group_.size());
  prepare(asked, pattern, 0);
  for (int i = 0; i < options_.warmups; ++i) {
    ISTHMUS_TRY(once(call));
    alive_();
  }
  ISTHMUS_ASSIGN(const int iterations, iterations_for(call));
  ISTHMUS_ASSIGN(const Times times, time(call, iterations));
  ISTHMUS_TRY(combine(times, &row));
  if (options_.checks > 0) {
    ISTHMUS_ASSIGN(row.wrong, check(asked, pattern));
  }
  return row;
}

}  // namespace isthmus
