#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "schedule/schedule.h"

namespace isthmus {

// Which rank's time a row shows: the values of nccl-tests' -a.
enum class AverageMode : std::uint8_t { kRankZero = 0, kMean = 1, kMin = 2, kMax = 3 };

// Of the program that times the operation, and in its results: nccl-tests' names. kSend stands for
// the exchange in a ring, sendrecv.
std::string_view perf_op_name(OpKind op);

// Whether the operation has a form with two buffers, and one in place.
bool has_form(OpKind op, bool in_place);

// Blocks that the whole buffer of a rank is made of.
std::size_t parts_of(OpKind op, std::size_t ranks);

// What a perf program was asked for. Plain values.
struct PerfOptions {
  OpKind op = OpKind::kAllReduce;
  std::uint64_t bytes_min = 8;
  std::uint64_t bytes_max = 64ULL << 20;
  std::uint64_t step_bytes = 0;   // added from size to size when step_factor is 1
  std::uint64_t step_factor = 2;  // from size to size
  std::vector<DType> dtypes = {DType::kFloat32};
  std::vector<RedOp> red_ops = {RedOp::kSum};
  int iterations = 0;  // 0: as many as take about 50 ms
  int warmups = 5;
  int checks = 1;  // runs whose results are compared, 0 none
  AverageMode average = AverageMode::kMean;
  int root = 0;
  int ranks = 0;  // to fork; 0: started by a launcher
  int nodes = 1;  // to pretend for forked ranks
  bool pin = false;
  std::string json;  // file, "-" stdout, "" none
  std::string csv;
  int stall_s = 120;  // forked ranks without progress for so long are ended
  std::string command;

  bool table() const { return json != "-" && csv != "-"; }

  // The sizes of the rows, in bytes, ascending.
  std::vector<std::uint64_t> sizes() const;
};

// Fills the options from the command line; what is wrong with it was said on stderr then, and the
// exit code returned, unless `quiet`. `program` is the name shown.
std::optional<int> parse_perf_options(OpKind op, int argc, const char* const* argv, bool quiet,
                                      PerfOptions* options);

}  // namespace isthmus
