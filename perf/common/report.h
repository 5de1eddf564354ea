#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "perf/common/options.h"

namespace isthmus {

// One measurement: a size, in place or not.
struct PerfRow {
  OpKind op = OpKind::kAllReduce;
  DType dtype = DType::kFloat32;
  std::string red_op = "none";
  int ranks = 1;
  std::size_t count = 0;  // elements that a call is given
  std::size_t bytes = 0;  // the whole buffer of a rank
  bool in_place = false;
  double time_us = 0.0;
  double time_us_min = 0.0;
  double time_us_max = 0.0;
  std::optional<std::int64_t> wrong;  // none: not checked
  std::string algorithm;

  int root = -1;  // -1: no rank differs from the others

  double algbw_gbs() const { return static_cast<double>(bytes) / (time_us * 1e3); }

  // What the slowest link carries: makes different numbers of ranks comparable.
  double busbw_gbs() const;
};

struct PerfMeta {
  std::string machine_json;
  int ranks = 1;
  int nodes = 1;
  std::string command;
};

// Shows rows as they come: a table like nccl-tests' on stdout, JSON and CSV files, and a line about
// what runs now on stderr when that is a terminal. Rank 0 only. One thread.
class Report {
 public:
  // Opens the files, so that a bad name is known before the measurement.
  static Result<std::unique_ptr<Report>> create(const PerfOptions& options, const PerfMeta& meta);

  Report(const PerfOptions& options, const PerfMeta& meta);  // Use create().
  ~Report();

  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // What is measured now.
  void progress(const std::string& text);

  // Both measurements of one size, or the one that there is.
  void add(const std::optional<PerfRow>& out_of_place, const std::optional<PerfRow>& in_place);

  // Footer and files. False when a result was wrong.
  Result<bool> finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      if (file != stdout) {
        std::fclose(file);
      }
    }
  };

  using File = std::unique_ptr<std::FILE, Close>;

  void write_header() const;
  void write_csv(const PerfRow& row);
  Status write_json();
  void clear_progress();

  static Result<File> open(const std::string& name);
  static Status close(File file, const std::string& name);

  PerfOptions options_;
  PerfMeta meta_;
  File json_;
  File csv_;
  bool terminal_ = false;
  bool shown_ = false;  // a progress line is on the terminal
  std::vector<PerfRow> rows_;
};

}  // namespace isthmus
