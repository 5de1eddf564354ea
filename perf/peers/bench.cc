// One measuring loop for several collective libraries.
//
// Built once a library, with -DBENCH_MPI, -DBENCH_CCL or -DBENCH_ISTHMUS. Prints CSV:
// label,op,ranks,bytes,us_median,us_min,us_max,calls,repetitions. `bytes` is the whole buffer of
// one rank (all-gather: its output, reduce-scatter: its input), as in nccl-tests. float32, sum, in
// place except all-to-all. The broadcast's root rotates, so that broadcasts cannot run ahead of
// each other. A repetition is a barrier and then the calls; its time is the largest over the
// ranks, divided by the calls. README.md has the options.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sched.h>

#if defined(BENCH_MPI)
#include "perf/peers/lib_mpi.h"
#elif defined(BENCH_CCL)
#include "perf/peers/lib_ccl.h"
#elif defined(BENCH_ISTHMUS)
#include "perf/peers/lib_isthmus.h"
#else
#error "define BENCH_MPI, BENCH_CCL or BENCH_ISTHMUS"
#endif

namespace {

enum class Op { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kAllToAll, kBarrier };

constexpr Op kOps[] = {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter,
                       Op::kBroadcast, Op::kAllToAll,  Op::kBarrier};
constexpr double kMostCalls = 20000;
constexpr std::size_t kPage = 4096;

const char* name_of(Op op) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                    "broadcast",  "all_to_all", "barrier"};
  return kNames[static_cast<int>(op)];
}

struct Options {
  std::string label = "?";
  std::string ops = "all";
  std::size_t least = 8;
  std::size_t most = 64 << 20;
  double factor = 4;
  double target_us = 15e3;  // What one repetition should take.
  int repetitions = 5;
  bool touch = false;  // Each call apart, on data just written: as an application has them.
  bool pin = true;     // Round robin over the processors, the same for every library.
  // float32 for every library; all_reduce of ours also in 16-bit types.
  std::string dtype = "float32";
  bool mapped = false;  // Buffers of the library's own memory, of ours only.
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    const double number = std::atof(argv[i + 1]);
    if (key == "--label") {
      options.label = argv[i + 1];
    } else if (key == "--ops") {
      options.ops = argv[i + 1];
    } else if (key == "--min") {
      options.least = static_cast<std::size_t>(number);
    } else if (key == "--max") {
      options.most = static_cast<std::size_t>(number);
    } else if (key == "--factor") {
      options.factor = number;
    } else if (key == "--target-ms") {
      options.target_us = number * 1e3;
    } else if (key == "--reps") {
      options.repetitions = static_cast<int>(number);
    } else if (key == "--touch") {
      options.touch = number != 0;
    } else if (key == "--pin") {
      options.pin = number != 0;
    } else if (key == "--mapped") {
      options.mapped = number != 0;
    } else if (key == "--dtype") {
      options.dtype = argv[i + 1];
    } else if (key != "--rank" && key != "--size" && key != "--kvs") {  // lib_ccl.h reads these.
      std::fprintf(stderr, "bench: no option %s\n", argv[i]);
      std::exit(2);
    }
  }
  return options;
}

double now_us() {
  using std::chrono::duration;
  return duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

float* room_for(std::size_t floats) {
  const std::size_t bytes = (floats * sizeof(float) + kPage - 1) & ~(kPage - 1);
  return static_cast<float*>(std::aligned_alloc(kPage, bytes));
}

// A template, so that a library without the operation compiles.
template <typename AnyLib>
void exchange(AnyLib* lib, float* in, float* out, std::size_t count) {
  if constexpr (AnyLib::kAllToAll) {
    lib->all_to_all(in, out, count);
  }
}

// Makes all_reduce use that type, and returns the bytes of an element.
template <typename AnyLib>
std::size_t use_dtype(AnyLib* lib, const std::string& name) {
  if constexpr (requires { lib->use_dtype(name); }) {
    return lib->use_dtype(name);
  }
  if (name != "float32") {
    std::fprintf(stderr, "bench: no %s with this library\n", name.c_str());
    std::exit(2);
  }
  return sizeof(float);
}

// A buffer of the library's own memory, which it keeps; null where it has none.
template <typename AnyLib>
float* own_room(AnyLib* lib, std::size_t floats) {
  if constexpr (requires { lib->own_room(floats); }) {
    return lib->own_room(floats);
  }
  std::fprintf(stderr, "bench: this library has no memory of its own\n");
  std::exit(2);
}

class Bench {
 public:
  Bench(Lib* lib, const Options& options)
      : lib_(*lib),
        options_(options),
        size_(static_cast<std::size_t>(lib->size())),
        element_(use_dtype(lib, options.dtype)),
        a_(room(options.most / sizeof(float) + size_)),
        b_(room(options.most / sizeof(float) + size_)) {}

  ~Bench() {
    if (!options_.mapped) {
      std::free(a_);
      std::free(b_);
    }
  }

  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void run() {
    for (const Op op : kOps) {
      const bool no_such = (op == Op::kAllToAll && !Lib::kAllToAll) ||
                           (op != Op::kAllReduce && element_ != sizeof(float));
      if (no_such) {
        continue;
      }
      const std::string wanted = "," + options_.ops + ",";
      if (options_.ops == "all" ||
          wanted.find("," + std::string(name_of(op)) + ",") != std::string::npos) {
        sweep(op);
      }
    }
  }

 private:
  float* room(std::size_t floats) {
    return options_.mapped ? own_room(&lib_, floats) : room_for(floats);
  }

  void sweep(Op op) {
    op_ = op;
    const bool blocks = op == Op::kAllGather || op == Op::kReduceScatter || op == Op::kAllToAll;
    std::size_t last = 0;
    const double end = static_cast<double>(options_.most) * options_.factor;
    double want = static_cast<double>(options_.least);
    while (want < end) {
      const std::size_t bytes = std::min(static_cast<std::size_t>(want), options_.most);
      want *= options_.factor;
      const std::size_t elements = bytes / element_;
      count_ = blocks ? std::max<std::size_t>(1, elements / size_) : elements;
      all_ = op == Op::kBarrier ? 0 : blocks ? count_ * size_ : count_;
      if (all_ != last || op == Op::kBarrier) {
        last = all_;
        measure();
      }
      if (op == Op::kBarrier) {
        break;
      }
    }
  }

  void call() {
    switch (op_) {
      case Op::kAllReduce:
        lib_.all_reduce(a_, count_);
        break;
      case Op::kAllGather:
        lib_.all_gather(a_, count_);
        break;
      case Op::kReduceScatter:
        block_ = lib_.reduce_scatter(a_, count_);
        break;
      case Op::kBroadcast:
        lib_.broadcast(a_, count_, root_++ % lib_.size());
        break;
      case Op::kAllToAll:
        exchange(&lib_, a_, b_, count_);
        break;
      case Op::kBarrier:
        lib_.barrier();
        break;
    }
  }

  // What element i of the input is before the first call.
  float input(std::size_t i) const {
    switch (op_) {
      case Op::kBroadcast:
        return lib_.rank() == 0 ? 7.0F : 0.0F;
      case Op::kAllToAll:
        return static_cast<float>(static_cast<std::size_t>(lib_.rank()) * 100 + block_of(i));
      default:
        return static_cast<float>(lib_.rank() + 1);
    }
  }

  std::size_t block_of(std::size_t i) const { return i / count_; }

  bool right(std::size_t i) const {
    const std::size_t of_ranks = size_ * (size_ + 1) / 2;
    const auto sum = static_cast<float>(of_ranks);
    const auto block = static_cast<float>(block_of(i));
    switch (op_) {
      case Op::kAllReduce:
        return a_[i] == sum;
      case Op::kAllGather:
        return a_[i] == block + 1;
      case Op::kReduceScatter:
        return i >= count_ || block_[i] == sum;
      case Op::kBroadcast:
        return a_[i] == 7.0F;
      case Op::kAllToAll:
        return b_[i] == block * 100 + static_cast<float>(lib_.rank());
      case Op::kBarrier:
        break;
    }
    return true;
  }

  // Of 16-bit types: the sum of ones of 2, 4 or 8 ranks.
  bool halves_right() {
    const bool brain = options_.dtype == "bfloat16";
    const auto one = static_cast<std::uint16_t>(brain ? 0x3F80 : 0x3C00);
    const auto log2 = static_cast<unsigned>(std::bit_width(size_)) - 1;
    const auto sum = static_cast<std::uint16_t>(one + (log2 << (brain ? 7 : 10)));
    auto* const halves = reinterpret_cast<std::uint16_t*>(a_);
    std::fill(halves, halves + all_, one);
    call();
    return std::all_of(halves, halves + all_, [&](std::uint16_t half) { return half == sum; });
  }

  // The first call of a size is checked: all of a small buffer, ends and samples of a large one.
  bool floats_right() {
    for (std::size_t i = 0; i < all_; ++i) {
      a_[i] = input(i);
    }
    root_ = 0;
    call();
    bool ok = true;
    for (std::size_t i = 0; i < all_;) {
      ok = ok && right(i);
      i += all_ > 4096 && i > 1024 && i + 2048 < all_ ? 509 : 1;
    }
    return ok;
  }

  void check() {
    if (!(element_ == sizeof(float) ? floats_right() : halves_right())) {
      std::fprintf(stderr, "%s rank %d: WRONG %s of %zu bytes\n", options_.label.c_str(),
                   lib_.rank(), name_of(op_), bytes());
    }
  }

  std::size_t bytes() const { return all_ * element_; }

  double timed(int calls) {
    double us = 0;
    const int step = options_.touch ? 1 : calls;
    for (int i = 0; i < calls; i += step) {
      if (options_.touch) {
        std::memset(a_, 0, bytes());
      }
      lib_.barrier();
      us -= now_us();
      for (int j = 0; j < step; ++j) {
        call();
      }
      us += now_us();
    }
    return lib_.max(us) / calls;
  }

  void measure() {
    check();
    // From here on the data are zeros, which sums leave alone.
    std::memset(a_, 0, bytes());
    std::memset(b_, 0, bytes());
    double once = timed(bytes() < (1 << 20) ? lib_.size() : 1);
    for (int i = 0; i < 3 && once < options_.target_us; ++i) {
      once = std::min(once, timed(2));
    }
    const int calls = static_cast<int>(std::clamp(options_.target_us / once, 1.0, kMostCalls));
    std::vector<double> us(static_cast<std::size_t>(options_.repetitions));
    for (double& each : us) {
      each = timed(calls);
    }
    std::sort(us.begin(), us.end());
    if (lib_.rank() == 0) {
      std::printf("%s,%s,%zu,%zu,%.3f,%.3f,%.3f,%d,%d\n", options_.label.c_str(), name_of(op_),
                  size_, bytes(), us[us.size() / 2], us.front(), us.back(), calls,
                  options_.repetitions);
      std::fflush(stdout);
    }
  }

  Lib& lib_;
  Options options_;
  std::size_t size_;
  std::size_t element_;  // Bytes.
  float* a_;
  float* b_;
  float* block_ = nullptr;  // Where reduce_scatter left this rank's block.
  Op op_ = Op::kAllReduce;
  std::size_t count_ = 0;  // Elements of a call's argument.
  std::size_t all_ = 0;    // Elements of the whole buffer.
  int root_ = 0;
};

void pin(int rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(rank) % std::thread::hardware_concurrency(), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    std::perror("bench: sched_setaffinity");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Lib lib(&argc, &argv);
  const Options options = parse(argc, argv);
  if (options.pin) {
    pin(lib.rank());
  }
  Bench(&lib, options).run();
  return 0;
}
