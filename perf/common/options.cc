#include "perf/common/options.h"

#include <algorithm>
#include <array>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/nearest.h"
#include "base/version.h"
#include "tools/command_line/command_line.h"

namespace isthmus {
namespace {

// Most sizes of one run: a step of 1 B over a wide range is a typing error.
constexpr std::size_t kSizesMax = 100'000;

template <typename T>
using Names = std::vector<std::pair<std::string, T>>;

const Names<DType>& dtype_names() {
  static const Names<DType> names = [] {
    Names<DType> all;
    for (int i = 0; i < kDTypeCount; ++i) {
      const DType dtype = static_cast<DType>(i);
      if (dtype_kind(dtype) != DTypeKind::kOpaque) {
        all.emplace_back(dtype_name(dtype), dtype);
      }
    }
    all.emplace_back("float", DType::kFloat32);
    all.emplace_back("double", DType::kFloat64);
    all.emplace_back("half", DType::kFloat16);
    return all;
  }();
  return names;
}

const Names<RedOp>& red_op_names() {
  static const Names<RedOp> names = {
      {"sum", RedOp::kSum},         {"avg", RedOp::kAvg},   {"min", RedOp::kMin},
      {"max", RedOp::kMax},         {"prod", RedOp::kProd}, {"band", RedOp::kBand},
      {"bor", RedOp::kBor},         {"bxor", RedOp::kBxor}, {"premul_sum", RedOp::kPremulSum},
      {"mulsum", RedOp::kPremulSum}};
  return names;
}

// The values of a list such as "float,half" or "all", each once; throws what CLI11 reports.
template <typename T>
std::vector<T> pick(const Names<T>& names, const std::string& text, const char* flag) {
  std::vector<T> picked;
  std::vector<std::string> known = {"all"};
  for (const auto& [name, value] : names) {
    known.push_back(name);
  }
  for (const std::string& word : CLI::detail::split(text, ',')) {
    bool found = false;
    for (const auto& [name, value] : names) {
      if (word == name || word == "all") {
        found = true;
        if (std::find(picked.begin(), picked.end(), value) == picked.end()) {
          picked.push_back(value);
        }
      }
    }
    if (!found) {
      const std::string near = nearest(word, known);
      throw CLI::ValidationError(
          flag, near.empty()
                    ? fmt::format("'{}' is unknown; expected {}", word, fmt::join(known, ", "))
                    : fmt::format("'{}' is unknown; did you mean '{}'?", word, near));
    }
  }
  return picked;
}

CLI::Option* add_bytes(CLI::App& app, const char* names, std::uint64_t* out, const char* text) {
  return app
      .add_option_function<std::string>(
          names,
          [out, names](const std::string& value) {
            const Result<std::uint64_t> bytes = parse_bytes(value);
            if (!bytes.ok()) {
              throw CLI::ValidationError(names, bytes.error().message);
            }
            *out = *bytes;
          },
          text)
      ->type_name("SIZE");
}

const char* title_of(OpKind op) {
  switch (op) {
    case OpKind::kBroadcast:
      return "Times broadcast: every rank ends with the root's data.";
    case OpKind::kReduce:
      return "Times reduce: the root ends with the reduction over all ranks.";
    case OpKind::kGather:
      return "Times gather: the root ends with the blocks of all ranks.";
    case OpKind::kScatter:
      return "Times scatter: every rank ends with its block of the root's data.";
    case OpKind::kAllToAll:
      return "Times all_to_all: every rank ends with the blocks that all ranks have for it.";
    case OpKind::kSend:
      return "Times send and recv: every rank sends to the next one and receives from the one "
             "before.";
    case OpKind::kAllGather:
      return "Times all_gather: every rank ends with the blocks of all ranks.";
    case OpKind::kReduceScatter:
      return "Times reduce_scatter: every rank ends with its block of the reduction.";
    default:
      return "Times all_reduce: every rank ends with the reduction over all ranks.";
  }
}

std::string examples_of(const std::string& program) {
  return fmt::format(
      "Examples:\n"
      "  {0} --ranks 2 --pin                        this machine, 2 processes, 8 B to 64 MiB\n"
      "  {0} --ranks 4 -b 1M -e 64M -d bfloat16     4 processes, larger sizes, 16 bits\n"
      "  torchrun --nproc-per-node 2 --no-python {0} -b 8 -e 1M\n"
      "  MASTER_ADDR=host MASTER_PORT=29500 mpirun -np 4 {0} --json -\n"
      "\n"
      "Columns: size is the whole buffer of a rank and count what a call is given, as in\n"
      "nccl-tests (where data are a block per rank: elements of one block). algbw is size / time.\n"
      "busbw is what the slowest link carries whatever the number of ranks n: algbw times\n"
      "2(n-1)/n for all_reduce, 1 for broadcast, reduce and sendrecv, (n-1)/n for the others.\n"
      "#wrong counts elements that differ from the exact result, over all ranks. time_us_min and\n"
      "time_us_max (JSON, CSV) are the fastest and the slowest tenth of the iterations on any\n"
      "rank.\n"
      "Exit code: 0, or 1 when a result was wrong or a rank failed, or 2 for a bad command line.",
      program);
}

// Of lists, combinations that do not exist are left out; one must remain.
void check_reducible(const PerfOptions& options) {
  for (const DType dtype : options.dtypes) {
    for (const RedOp op : options.red_ops) {
      if (reducible(dtype, op)) {
        return;
      }
    }
  }
  const DType dtype = options.dtypes.front();
  const RedOp op = options.red_ops.front();
  throw CLI::ValidationError("--op", fmt::format("{} does not go with {}: {}", red_op_name(op),
                                                 dtype_name(dtype), why_not_reducible(dtype, op)));
}

// What CLI11 cannot check by itself.
void check_together(const CLI::App& app, PerfOptions* options) {
  const bool max_given = app.count("--maxbytes") > 0;
  if (!max_given) {
    options->bytes_max = std::max(options->bytes_max, options->bytes_min);
  }
  if (options->bytes_min > options->bytes_max) {
    throw CLI::ValidationError("--maxbytes", fmt::format("{} is less than --minbytes {}",
                                                         options->bytes_max, options->bytes_min));
  }
  if (app.count("--stepfactor") == 0 && options->step_bytes > 0) {
    options->step_factor = 1;
  }
  if (options->step_factor == 1 && options->step_bytes == 0) {
    options->step_bytes = 1 << 20;
  }
  if (options->json == "-" && options->csv == "-") {
    throw CLI::ValidationError("--csv", "stdout can take --json or --csv, not both");
  }
  if (options->ranks > 0 && options->ranks % options->nodes != 0) {
    throw CLI::ValidationError(
        "--nodes", fmt::format("{} does not divide --ranks {}", options->nodes, options->ranks));
  }
  if (options->nodes > 1 && options->ranks == 0) {
    throw CLI::ValidationError("--nodes", "needs --ranks: launchers place ranks on real nodes");
  }
  if (options->ranks > 0 && options->root >= options->ranks) {
    throw CLI::ValidationError(
        "--root", fmt::format("{} is not one of --ranks {}", options->root, options->ranks));
  }
  if (op_traits(options->op).reduces) {
    check_reducible(*options);
  }
  if (options->sizes().size() > kSizesMax) {
    throw CLI::ValidationError("--stepbytes", fmt::format("gives more than {} sizes", kSizesMax));
  }
}

void add_what(CLI::App& app, PerfOptions* options) {
  add_bytes(app, "-b,--minbytes", &options->bytes_min, "smallest size; 8, 32K, 64M (default 8)");
  add_bytes(app, "-e,--maxbytes", &options->bytes_max, "largest size (default 64M)");
  app.add_option("-f,--stepfactor", options->step_factor,
                 "each size is so many times the one before (default 2)")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N");
  add_bytes(app, "-i,--stepbytes", &options->step_bytes,
            "adds so many bytes instead (without -f, or with -f 1)");
  app.add_option_function<std::string>(
         "-d,--datatype",
         [options](const std::string& text) {
           options->dtypes = pick(dtype_names(), text, "--datatype");
         },
         "float, double, half, bfloat16, int8 to int64, uint8 to uint64, bool, complex64, "
         "complex128, float8_e4m3fn, float8_e5m2 or their fnuz kin, a list, or all (default "
         "float)")
      ->type_name("TYPE");
  CLI::Option* op = app.add_option_function<std::string>(
      "-o,--op",
      [options](const std::string& text) { options->red_ops = pick(red_op_names(), text, "--op"); },
      !op_traits(options->op).reduces
          ? "accepted and ignored: nothing is reduced"
          : "sum, avg, min, max, prod, band, bor, bxor, premul_sum, a list, or all; "
            "what a type cannot do is left out (default sum)");
  op->type_name("OP");
}

void add_how(CLI::App& app, PerfOptions* options) {
  app.add_option("-n,--iters", options->iterations,
                 "timed iterations of each row (default: about 50 ms' worth, 20 to 20000)")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
  app.add_option("-w,--warmup_iters", options->warmups, "iterations before these (default 5)")
      ->check(CLI::Range(0, 1 << 30))
      ->type_name("N");
  app.add_option("-c,--check", options->checks,
                 "runs whose results are compared, 0 for none (default 1)")
      ->check(CLI::Range(0, 1 << 20))
      ->type_name("N");
  app.add_option_function<int>(
         "-a,--average", [options](int mode) { options->average = static_cast<AverageMode>(mode); },
         "time shown: 0 of rank 0, 1 mean over ranks, 2 least, 3 most (default 1)")
      ->check(CLI::Range(0, 3))
      ->type_name("MODE");
  if (op_traits(options->op).rooted) {
    app.add_option("-r,--root", options->root, "the root (default 0)")
        ->check(CLI::Range(0, 1 << 20))
        ->type_name("RANK");
  }
  app.add_option("--ranks", options->ranks,
                 "start so many processes on this machine; without it a launcher's are used")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.add_option("--nodes", options->nodes,
                 "with --ranks: pretend that they are on so many nodes (TCP between them)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.add_flag("--pin", options->pin, "bind ranks to processors, round robin");
  app.add_option("--json", options->json, "write rows and machine to FILE; - is stdout, alone")
      ->type_name("FILE");
  app.add_option("--csv", options->csv, "write rows to FILE; - is stdout, alone")
      ->type_name("FILE");
  app.add_option("--stall", options->stall_s,
                 "with --ranks: end a run that makes no progress for so many seconds (default 120)")
      ->check(CLI::Range(1, 86400))
      ->type_name("S");
}

}  // namespace

std::string_view perf_op_name(OpKind op) {
  switch (op) {
    case OpKind::kAllToAll:
      return "alltoall";
    case OpKind::kSend:
      return "sendrecv";
    default:
      return op_kind_name(op);
  }
}

bool has_form(OpKind op, bool in_place) {
  if (op == OpKind::kBroadcast) {
    return in_place;  // one buffer a rank
  }
  return !in_place || (op != OpKind::kSend && op_traits(op).in_place);
}

std::size_t parts_of(OpKind op, std::size_t ranks) {
  return op_traits(op).ranked ? ranks : 1;
}

std::vector<std::uint64_t> PerfOptions::sizes() const {
  std::vector<std::uint64_t> out;
  std::uint64_t bytes = bytes_min;
  while (bytes <= bytes_max && out.size() <= kSizesMax) {
    out.push_back(bytes);
    const std::uint64_t next =
        step_factor > 1 ? std::max<std::uint64_t>(bytes, 1) * step_factor : bytes + step_bytes;
    if (next <= bytes) {
      break;
    }
    bytes = next;
  }
  return out;
}

std::optional<int> parse_perf_options(OpKind op, int argc, const char* const* argv, bool quiet,
                                      PerfOptions* options) {
  options->op = op;
  for (int i = 0; i < argc; ++i) {
    options->command += fmt::format("{}{}", i == 0 ? "" : " ", argv[i]);
  }
  const std::string program = fmt::format("{}_perf", perf_op_name(op));
  CLI::App app(title_of(op), program);
  app.footer(examples_of(program));
  app.get_formatter()->column_width(30);
  app.set_version_flag("--version", fmt::format("{} of isthmus {}", program, kVersion));
  app.allow_extras();
  add_what(app, options);
  add_how(app, options);
  app.final_callback([&app, options] { check_together(app, options); });
  return parse_command_line(app, argc, argv, quiet);
}

}  // namespace isthmus
