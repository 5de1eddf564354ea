// oracle: what collectives must cost on this machine at least.
//
// Forks P ranks and times bare kernels (perf/limits/kernels.h). Prints the CSV of perf/peers:
// label,op,ranks,bytes,us_median,us_min,us_max,calls,repetitions. See README.md for the options.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "perf/limits/kernels.h"
#include "perf/limits/moves.h"

namespace isthmus::limits {
namespace {

struct Options {
  int ranks = 2;
  std::string kernels = "barrier,line,lines,slots,pipeline,cico,sliced,cma,direct";
  std::string ops = "all_reduce";  // Of the others all kernels run.
  std::string label;               // Added to the kernel's name.
  std::size_t least = 8;
  std::size_t most = 64 << 20;
  std::size_t factor = 4;
  bool touch = true;
  bool huge = false;  // Private buffers in huge pages; the peers' buffers are in what malloc gives.
  std::string idle;   // Default: pause, or yield when ranks outnumber processors.
  int looks = 3;
  Tuning tuning;
};

[[noreturn]] void usage(const char* what) {
  std::fprintf(stderr,
               "oracle: %s\n"
               "options: --ranks --ops a,b --kernels a,b --label --min --max --factor --touch 0|1 "
               "--huge 0|1\n"
               "  --idle spin|pause|yield|sleep|futex --looks --slot-kib --slots --spacing\n"
               "  --want LINES --demote 0|1 --prefetch LINES --pages --ahead-kib --stream-mib\n",
               what);
  std::exit(2);
}

void set(Options* options, std::string_view key, const char* text) {
  const auto number = std::strtoul(text, nullptr, 10);
  const auto small = static_cast<int>(number);
  Tuning& tuning = options->tuning;
  if (key == "--ranks") {
    options->ranks = small;
  } else if (key == "--ops") {
    options->ops = text;
  } else if (key == "--kernels") {
    options->kernels = text;
  } else if (key == "--label") {
    options->label = text;
  } else if (key == "--min") {
    options->least = number;
  } else if (key == "--max") {
    options->most = number;
  } else if (key == "--factor") {
    options->factor = number;
  } else if (key == "--touch") {
    options->touch = number != 0;
  } else if (key == "--huge") {
    options->huge = number != 0;
  } else if (key == "--idle") {
    options->idle = text;
  } else if (key == "--looks") {
    options->looks = small;
  } else if (key == "--slot-kib") {
    tuning.slot_bytes = number << 10;
  } else if (key == "--slots") {
    tuning.slots = small;
  } else if (key == "--spacing") {
    tuning.spacing = number;
  } else if (key == "--want") {
    tuning.want_lines = small;
  } else if (key == "--demote") {
    tuning.demote = number != 0;
  } else if (key == "--prefetch") {
    tuning.prefetch_lines = small;
  } else if (key == "--pages") {
    tuning.pages = small;
  } else if (key == "--ahead-kib") {
    tuning.ahead_bytes = number << 10;
  } else if (key == "--stream-mib") {
    tuning.stream_bytes = number << 20;
  } else {
    usage("unknown option");
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) {
      usage("an option lacks its value");
    }
    set(&options, argv[i], argv[i + 1]);
  }
  const Tuning& tuning = options.tuning;
  if (options.ranks < 1 || options.ranks > Team::kMostRanks || options.factor < 2 ||
      options.least < sizeof(float) || tuning.slots < 2 || tuning.slots % 2 != 0 ||
      tuning.slot_bytes == 0 || tuning.spacing < 64 || tuning.spacing % 64 != 0) {
    usage("a value is out of range");
  }
  options.tuning.most_bytes = options.most;
  return options;
}

Waiting waiting(const Options& options, bool crowded) {
  const std::string idle = !options.idle.empty() ? options.idle : (crowded ? "yield" : "pause");
  if (idle == "spin") {
    return {};
  }
  if (idle == "pause") {
    return {.idle = Waiting::Idle::kPause};
  }
  if (idle == "yield") {
    return {.idle = Waiting::Idle::kYield, .looks = options.looks};
  }
  if (idle == "sleep") {
    return {.idle = Waiting::Idle::kSleep, .looks = options.looks};
  }
  if (idle == "futex") {
    return {.idle = Waiting::Idle::kFutex, .looks = options.looks};
  }
  usage("no such --idle");
}

void print(const Team& team, const std::string& label, const char* op, std::size_t bytes,
           const Times& times) {
  if (team.reports()) {
    std::printf("%s,%s,%d,%zu,%.3f,%.3f,%.3f,%d,%d\n", label.c_str(), op, team.size(), bytes,
                times.median_us, times.least_us, times.most_us, times.calls, Team::kRepetitions);
    std::fflush(stdout);
  }
}

// One checked call; its values depend on rank and position, and all sums are exact.
void check(const Team& team, Kernel* kernel, float* buffer, std::size_t count) {
  const auto step = [](std::size_t i) { return static_cast<float>(i % 13); };
  for (std::size_t i = 0; i < count; ++i) {
    buffer[i] = static_cast<float>(team.rank() + 1) + step(i);
  }
  kernel->all_reduce(buffer, count);
  const int size = team.size();
  const int of_ranks = size * (size + 1) / 2;
  for (std::size_t i = 0; i < count; ++i) {
    const float want = static_cast<float>(of_ranks) + static_cast<float>(size) * step(i);
    if (buffer[i] != want) {
      std::fprintf(stderr, "oracle: rank %d of %d: element %zu of %zu is %g, want %g\n",
                   team.rank(), size, i, count, static_cast<double>(buffer[i]),
                   static_cast<double>(want));
      std::exit(1);
    }
  }
}

void run_kernel(const Options& options, const std::string& name, Team* team, Kernel* kernel) {
  const std::size_t room = std::min(options.most, kernel->most_bytes());
  float* buffer = kernel->buffer();
  if (buffer == nullptr) {
    buffer = reinterpret_cast<float*>(Team::own(room, options.huge));
  }
  for (std::size_t bytes = options.least; bytes <= room;) {
    const std::size_t count = bytes / sizeof(float);
    check(*team, kernel, buffer, count);
    team->meet();  // The direct kernel writes into all buffers: none may be reset early.
    std::memset(buffer, 0, bytes);
    const auto call = [&] { kernel->all_reduce(buffer, count); };
    std::function<void()> touch;
    if (options.touch) {
      touch = [&] { std::memset(buffer, 0, bytes); };
    }
    print(*team, name + options.label, "all_reduce", bytes, team->measure(call, touch));
    bytes = bytes < room && bytes * options.factor > room ? room : bytes * options.factor;
  }
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Values depend on rank and position; every byte that has come is looked at.
void check_move(Team& team, Mover* mover, MoveOp op, std::byte* a, std::byte* b,
                std::size_t block) {
  const auto value = [&](int rank, std::size_t i) {
    return static_cast<std::byte>(static_cast<std::size_t>(rank) * 37 + i % 251);
  };
  const std::size_t size = op == MoveOp::kBroadcast ? 1 : static_cast<std::size_t>(team.size());
  const auto own = static_cast<std::size_t>(team.rank());
  for (std::size_t i = 0; i < block * size; ++i) {
    a[i] = value(team.rank(), i);
  }
  mover->move(op, a, b, block);
  for (std::size_t o = 0; o < size; ++o) {
    for (std::size_t i = 0; i < block; ++i) {
      const bool exchanges = op == MoveOp::kAllToAll;
      const std::size_t from = (exchanges ? own : o) * block + i;
      if ((exchanges ? b : a)[o * block + i] != value(static_cast<int>(o), from)) {
        std::fprintf(stderr, "oracle: rank %d: byte %zu of block %zu is wrong\n", team.rank(), i,
                     o);
        std::exit(1);
      }
    }
  }
  team.meet();  // Nobody rewrites what another still looks at.
}

int run_moves(const Options& options, const std::string& op_name, MoveOp op) {
  for (const char* name : {"pull", "stage"}) {
    const bool crowded = Team(options.ranks, {}).crowded();
    Team team(options.ranks, waiting(options, crowded));
    const std::unique_ptr<Mover> mover = make_mover(name, &team, options.tuning);
    if (!mover->moves(op)) {
      continue;
    }
    team.fork();
    std::byte* const a = Team::own(options.most, options.huge);
    std::byte* const b = Team::own(options.most, options.huge);
    for (std::size_t bytes = options.least; bytes <= options.most; bytes *= options.factor) {
      const std::size_t size = op == MoveOp::kBroadcast ? 1 : static_cast<std::size_t>(team.size());
      const std::size_t block = std::max(bytes / size, sizeof(float));
      check_move(team, mover.get(), op, a, b, block);
      const auto touch = [&] { std::memset(a, 0, block * size); };
      touch();
      const Times times = team.measure([&] { mover->move(op, a, b, block); },
                                       options.touch ? touch : std::function<void()>());
      print(team, std::string("bare-") + name + options.label, op_name.c_str(), block * size,
            times);
    }
    team.join();
  }
  return 0;
}

int run_all_reduce(const Options& options) {
  for (const std::string& name : split(options.kernels)) {
    const bool crowded = Team(options.ranks, {}).crowded();
    Team team(options.ranks, waiting(options, crowded));
    if (name == "barrier") {
      team.fork();
      const Times times = team.measure([&] { team.meet(); }, {});
      print(team, "bare-barrier" + options.label, "barrier", 0, times);
      team.join();
      continue;
    }
    const std::unique_ptr<Kernel> kernel = make_kernel(name, &team, options.tuning);
    if (kernel == nullptr) {
      usage("no such kernel");
    }
    team.fork();
    run_kernel(options, "bare-" + name, &team, kernel.get());
    team.join();
  }
  return 0;
}

int run(const Options& options) {
  for (const std::string& name : split(options.ops)) {
    MoveOp op{};
    if (move_op(name, &op)) {
      run_moves(options, name, op);
    } else if (name == "all_reduce") {
      run_all_reduce(options);
    }  // Others have no bare kernel.
  }
  return 0;
}

}  // namespace
}  // namespace isthmus::limits

int main(int argc, char** argv) {
  return isthmus::limits::run(isthmus::limits::parse(argc, argv));
}
