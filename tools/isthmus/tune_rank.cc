#include "tools/isthmus/tune_rank.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/version.h"
#include "collectives/select.h"
#include "collectives/world.h"
#include "kernels/copy.h"
#include "kernels/reduce.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/node_view.h"
#include "tools/isthmus/tune_timer.h"

namespace isthmus {
namespace {

// An algorithm that is expected to be slower than the best by so much is not worth a look.
constexpr double kHopeless = 3.0;

// More than this is a machine that was busy with something else.
constexpr double kFactorMost = 20.0;

// The line's payload first.
constexpr std::array<std::size_t, 11> kSizes = {48,     64,      512,     4096,     16384,   65536,
                                                262144, 1048576, 4194304, 16777216, 67108864};

// Work on the processor is timed by the processor's own time where ranks share it.
double clock_us(bool shared) {
  timespec now{};
  ::clock_gettime(shared ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

class Tuner {
 public:
  Tuner(World& world, const Member& member, const TuneArena& arena,
        const std::function<void(double, std::string_view)>& progress)
      : group_(world.communicator()),
        member_(member),
        arena_(arena),
        progress_(progress),
        ranks_(static_cast<std::size_t>(member.size)),
        timer_(world, member, ranks_per_processor(member.size)) {
    tuned_.ranks = member.size;
    tuned_.costs.sharing = ranks_per_processor(member.size);
    tuned_.costs.measured = true;
  }

  Result<TunedRanks> run() {
    ISTHMUS_TRY(timer_.prepare());
    ISTHMUS_TRY(measure_flags());
    ISTHMUS_TRY(measure_rates());
    ISTHMUS_TRY(measure_pull());
    ISTHMUS_TRY(measure_algorithms());
    return tuned_;
  }

 private:
  bool shared() const { return tuned_.costs.sharing > 1.0; }

  std::byte* input(std::size_t at) const { return timer_.own().input + at; }

  std::byte* output(std::size_t at) const { return timer_.own().output + at; }

  void say(double share, std::string_view what) {
    member_.alive();
    if (member_.rank == 0) {
      progress_(share, what);
    }
  }

  Status measure_flags() {
    say(0.0, "flags");
    ISTHMUS_ASSIGN(const double barrier_us, timer_.time_us("", {}));
    NodeCosts& costs = tuned_.costs;
    if (shared()) {
      costs.switch_us = barrier_us / costs.sharing;
      return {};
    }
    costs.flag_rank_us = std::min(costs.flag_rank_us, 0.5 * barrier_us / member_.size);
    costs.flag_us = barrier_us - costs.flag_rank_us * (member_.size - 2);
    costs.look_us = 0.5 * barrier_us;
    return {};
  }

  struct Rates {
    double copy = 0.0;
    double read = 0.0;
    double pair = 0.0;  // a reduction of two operands, all of it
    double four = 0.0;
  };

  // One kind of work on up to four pieces from `at`; everyone does it, then all wait.
  template <typename Work>
  Result<double> timed(std::size_t pieces, const Work& work) {
    const double begin = clock_us(shared());
    for (std::size_t k = 0; k < pieces; ++k) {
      work(k);
    }
    const double us = clock_us(shared()) - begin;
    ISTHMUS_TRY(group_.barrier());
    return us;
  }

  // One way through buffers of half the footprint each; microseconds a MiB.
  Result<Rates> pass(std::size_t half, std::size_t piece) {
    const ReduceFn add = reduce_kernel(DType::kFloat32, RedOp::kSum);
    const std::size_t count = piece / sizeof(float);
    Rates sum;
    double mib = 0.0;
    double mib_four = 0.0;
    for (std::size_t at = 0; at < half; at += piece * TuneArena::kPieces) {
      const std::size_t pieces = std::min<std::size_t>((half - at) / piece, TuneArena::kPieces);
      const auto own = [&](std::size_t k) {
        return arena_.piece(member_.rank, static_cast<int>(k));
      };
      // The next rank's, or with more ranks every piece of another rank.
      const auto other = [&](std::size_t k) {
        const int away = 1 + static_cast<int>(k) % (member_.size - 1);
        return arena_.piece((member_.rank + away) % member_.size, static_cast<int>(k));
      };
      const auto stage = [&](std::size_t k) { copy_bytes(own(k), input(at + k * piece), piece); };
      ISTHMUS_ASSIGN(const double copied, timed(pieces, stage));
      ISTHMUS_ASSIGN(const double read, timed(pieces, [&](std::size_t k) {
                       copy_bytes(output(at + k * piece), other(k), piece);
                     }));
      ISTHMUS_ASSIGN([[maybe_unused]] const double again, timed(pieces, stage));
      ISTHMUS_ASSIGN(const double pair, timed(pieces, [&](std::size_t k) {
                       const std::array<const void*, 2> from = {input(at + k * piece), other(k)};
                       add(output(at + k * piece), from.data(), 2, count, 1);
                     }));
      sum.copy += copied;
      sum.read += read;
      sum.pair += pair;
      mib += static_cast<double>(pieces * piece) / 1048576.0;
      if (pieces == TuneArena::kPieces) {
        ISTHMUS_ASSIGN([[maybe_unused]] const double third, timed(pieces, stage));
        ISTHMUS_ASSIGN(const double four, timed(1, [&](std::size_t) {
                         const std::array<const void*, 4> from = {input(at), other(0), other(1),
                                                                  other(2)};
                         add(output(at), from.data(), 4, count, 1);
                       }));
        sum.four += four;
        mib_four += static_cast<double>(piece) / 1048576.0;
      }
    }
    return Rates{sum.copy / mib, sum.read / mib, sum.pair / mib,
                 mib_four > 0.0 ? sum.four / mib_four : 0.0};
  }

  Status measure_rates() {
    NodeCosts& costs = tuned_.costs;
    std::array<double, RateCurve::kPoints> footprints = NodeCosts::kFootprints;
    footprints.back() =
        std::min(footprints.back(), 2.0 * static_cast<double>(timer_.buffer_bytes()));
    for (RateCurve* curve : {&costs.copy, &costs.read, &costs.combine, &costs.reduce}) {
      curve->bytes = footprints;
    }
    for (std::size_t point = 0; point < footprints.size(); ++point) {
      say(0.02 + 0.02 * static_cast<double>(point), "copies and reductions");
      const std::size_t half = static_cast<std::size_t>(footprints[point] / 2.0);
      const std::size_t piece = std::min(half / TuneArena::kPieces, TuneArena::kPieceBytes);
      const int passes = half < (std::size_t{1} << 20)    ? 31
                         : half < (std::size_t{16} << 20) ? 7
                                                          : 3;
      std::array<std::vector<double>, 4> seen;
      for (int i = 0; i <= passes; ++i) {
        ISTHMUS_ASSIGN(const Rates rates, pass(half, piece));
        const std::array<double, 4> values = {rates.copy, rates.read, rates.pair, rates.four};
        for (std::size_t kind = 0; kind < values.size() && i > 0; ++kind) {
          seen[kind].push_back(values[kind]);  // But for the first pass, which warms.
        }
        member_.alive();
      }
      const double pair = median(seen[2]);
      const double each = std::clamp(0.5 * (median(seen[3]) - pair), 0.1 * pair, 0.9 * pair);
      costs.copy.us_per_mib[point] = median(seen[0]);
      costs.read.us_per_mib[point] = median(seen[1]);
      costs.reduce.us_per_mib[point] = each;
      costs.combine.us_per_mib[point] = pair - each;
    }
    return share_costs();
  }

  // Every rank has numbers of its own: rank 0's decide what is measured next.
  Status share_costs() {
    NodeCosts& costs = tuned_.costs;
    ISTHMUS_TRY(group_.broadcast(&costs, sizeof costs, DType::kByte, 0));
    topology_.set_node_costs(costs);
    return {};
  }

  // Copies between processes, where the kernel lets these ranks: what an all_gather in place by
  // them takes, less its flags.
  Status measure_pull() {
    constexpr std::string_view kName = "pull_all_gather";
    if (timer_.runs_by(kName,
                       timer_.call_of(OpKind::kAllGather, TuneArena::kPieceBytes, timer_.own()))) {
      topology_.set_pulls(true);
      NodeCosts& costs = tuned_.costs;
      costs.pull.bytes = costs.copy.bytes;
      for (std::size_t point = 0; point < costs.pull.bytes.size(); ++point) {
        const std::size_t whole =
            std::min(static_cast<std::size_t>(costs.pull.bytes[point]), timer_.buffer_bytes());
        const std::size_t block = std::max(whole / ranks_ & ~(kCacheLine - 1), kCacheLine);
        const double mib = static_cast<double>(block) / 1048576.0;
        ISTHMUS_ASSIGN(const double us, timer_.time_us(kName, timer_.call_of(OpKind::kAllGather,
                                                                             block, timer_.own())));
        const double work = (us - 2.0 * costs.wait_us(member_.size)) / costs.sharing;
        costs.pull.us_per_mib[point] =
            std::max(work / (mib * (member_.size - 1)), 0.5 * costs.read.us_per_mib[point]);
      }
    }
    return share_costs();
  }

  Status measure_algorithms() {
    const double steps = static_cast<double>(kOpKindCount * kSizes.size());
    double done = 0.0;
    for (int index = 0; index < kOpKindCount; ++index) {
      const OpKind op = static_cast<OpKind>(index);
      for (const std::size_t bytes : kSizes) {
        done += 1.0;
        const std::size_t whole = bytes * (op_traits(op).ranked ? ranks_ : 1);
        // Shards are for several nodes.
        if (op_traits(op).scheduled && !op_traits(op).shards && whole <= timer_.buffer_bytes() &&
            (op != OpKind::kBarrier || bytes == kSizes.front())) {
          say(0.1 + 0.9 * done / steps, fmt::format("{} {}", op_kind_name(op), bytes_text(bytes)));
          ISTHMUS_TRY(measure_size(op, bytes));
        }
      }
    }
    std::erase_if(tuned_.algorithms,
                  [](const TunedAlgorithm& algorithm) { return algorithm.points.empty(); });
    return {};
  }

  // The candidates of one operation and size, one after another.
  Status measure_size(OpKind op, std::size_t bytes) {
    ISTHMUS_TRY(measure_candidates(op, {.bytes = bytes}, timer_.own()));
    if (timer_.mapped().input != nullptr) {
      ISTHMUS_TRY(measure_candidates(op, {.bytes = bytes, .mapped = true}, timer_.mapped()));
    }
    return {};
  }

  // Those that this kind of memory adds to the others.
  Status measure_candidates(OpKind op, const Payload& payload, const TuneTimer::Buffers& buffers) {
    std::vector<std::pair<const Algorithm*, double>> candidates;
    double best = 0.0;
    for (const Algorithm& algorithm : algorithms()) {
      if (algorithm.op == op && !sends_messages(algorithm) &&
          algorithm.applicable(topology_, payload)) {
        candidates.emplace_back(&algorithm, estimate(algorithm, topology_, payload).total_us());
        best = candidates.size() == 1 ? candidates.back().second
                                      : std::min(best, candidates.back().second);
      }
    }
    Payload other = payload;
    other.mapped = false;
    for (const auto& [algorithm, expected] : candidates) {
      const bool measured = payload.mapped && algorithm->applicable(topology_, other);
      const Call call = timer_.call_of(op, payload.bytes, buffers);
      if (measured || expected > kHopeless * best || expected <= 0.0 ||
          !timer_.runs_by(algorithm->name, call)) {
        continue;
      }
      ISTHMUS_ASSIGN(const double us, timer_.time_us(algorithm->name, call));
      note(*algorithm,
           {payload.bytes, us, std::clamp(us / expected, 1.0 / kFactorMost, kFactorMost)});
    }
    return {};
  }

  void note(const Algorithm& algorithm, const TunedPoint& point) {
    const auto found = std::find_if(
        tuned_.algorithms.begin(), tuned_.algorithms.end(), [&](const TunedAlgorithm& known) {
          return known.op == algorithm.op && known.name == algorithm.name;
        });
    TunedAlgorithm& into = found != tuned_.algorithms.end()
                               ? *found
                               : tuned_.algorithms.emplace_back(
                                     TunedAlgorithm{algorithm.op, std::string(algorithm.name), {}});
    into.points.push_back(point);
  }

  Communicator& group_;
  const Member& member_;
  const TuneArena& arena_;
  const std::function<void(double, std::string_view)>& progress_;
  const std::size_t ranks_;
  TuneTimer timer_;
  TunedRanks tuned_;
  Topology topology_ = Topology::grid(1, static_cast<int>(ranks_));
};

}  // namespace

Status tune_rank(const Member& member, const TuneArena& arena,
                 const std::function<void(double, std::string_view)>& progress) {
  ISTHMUS_ASSIGN(const std::unique_ptr<World> world, join_to_measure(member));
  TuningTable table;
  ISTHMUS_ASSIGN(TunedRanks tuned, Tuner(*world, member, arena, progress).run());
  table.version = std::string(kVersion);
  table.machine = MachineKey::read();
  table.ranks.push_back(std::move(tuned));
  if (member.rank == 0) {
    ISTHMUS_TRY(arena.put_result(table.to_json()));
  }
  // No rank leaves while another still measures.
  return world->communicator().barrier();
}

namespace {

std::size_t arena_bytes(int ranks) {
  return TuningTable::kTextBytesMax +
         static_cast<std::size_t>(ranks) * TuneArena::kPieces * TuneArena::kPieceBytes;
}

}  // namespace

void TuneArena::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, bytes);
}

Result<TuneArena> TuneArena::create(int ranks) {
  const std::size_t bytes = arena_bytes(ranks);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return system_error(Code::kResource, errno,
                        fmt::format("cannot map {} bytes for ranks to measure with", bytes));
  }
  return TuneArena(
      std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(memory), Unmap{bytes}));
}

std::byte* TuneArena::piece(int rank, int index) const {
  const std::size_t number = static_cast<std::size_t>(rank * kPieces + index);
  return memory_.get() + TuningTable::kTextBytesMax + number * kPieceBytes;
}

// The text ends with the first 0 byte: the mapping begins with zeros.
Status TuneArena::put_result(std::string_view text) const {
  if (text.size() >= TuningTable::kTextBytesMax) {
    return Error{.code = Code::kInternal, .message = "the tuning table has become too large"};
  }
  std::memcpy(memory_.get(), text.data(), text.size());
  return {};
}

std::string_view TuneArena::result() const {
  const char* text = reinterpret_cast<const char*>(memory_.get());
  return {text, ::strnlen(text, TuningTable::kTextBytesMax)};
}

Result<std::string> measure_together(
    int ranks, const std::function<Status(const Member&, const TuneArena&)>& body) {
  // Ranks without any progress for so long are ended.
  constexpr int kStallS = 60;
  ISTHMUS_ASSIGN(const TuneArena arena, TuneArena::create(ranks));
  const int code = launch(ranks, kStallS, [&](const Member& member) {
    const Status status = body(member, arena);
    if (!status.ok()) {
      fmt::print(stderr, "rank {}: {}\n", member.rank, status.error().to_string());
    }
    return status.ok() ? 0 : kExitFailed;
  });
  if (code != 0) {
    return Error{
        .code = Code::kInternal,
        .message = fmt::format("measuring with {} ranks failed; nothing was written", ranks)};
  }
  return std::string(arena.result());
}

}  // namespace isthmus
