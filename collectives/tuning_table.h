#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "schedule/operation.h"
#include "topology/machine_key.h"
#include "topology/node_costs.h"
#include "topology/topology.h"

namespace isthmus {

// What `isthmus tune` measured on one machine, and the library chooses by. Plain values, immutable
// once loaded: any thread.

// One size of one algorithm: the time, and by how much it exceeds the estimate from the costs.
struct TunedPoint {
  std::size_t bytes = 0;
  double us = 0.0;
  double factor = 1.0;

  bool operator==(const TunedPoint&) const = default;
};

struct TunedAlgorithm {
  OpKind op = OpKind::kBarrier;
  std::string name;  // one that this library does not have is kept and never asked for
  std::vector<TunedPoint> points;  // ascending in bytes, at least one

  bool operator==(const TunedAlgorithm&) const = default;
};

// All that holds for one number of ranks on the node.
struct TunedRanks {
  int ranks = 2;
  NodeCosts costs;
  std::vector<TunedAlgorithm> algorithms;

  // What an estimate is to be multiplied by: between measured sizes it goes with the logarithm of
  // the size, beyond them it stays. 1 for what was not measured.
  double factor(OpKind op, std::string_view name, std::size_t bytes) const;

  bool measured(OpKind op, std::string_view name) const;

  // Whether copies between processes were measured.
  bool pulls() const { return measured(OpKind::kAllGather, "pull_all_gather"); }

  bool operator==(const TunedRanks&) const = default;
};

struct TuningTable {
  // Of the file; another one is not read.
  static constexpr int kFormat = 1;

  // A larger file is no table: rank 0 hands its text to all.
  static constexpr std::size_t kTextBytesMax = std::size_t{1} << 20;

  std::string version;  // of isthmus: factors hold for its estimates
  MachineKey machine;
  std::vector<TunedRanks> ranks;
  // A message between two nodes, if it was measured: by a job on several.
  std::optional<LinkClass> between;

  // The part for a group with so many ranks on a node: measured with ranks that share processors
  // as these do, or not as these do not; of those the nearest number of ranks. Null when there is
  // none.
  const TunedRanks* nearest(int ranks_on_node, double sharing) const;

  // Why these numbers do not hold here; empty when they do.
  std::string why_foreign(const MachineKey& here) const;

  // `indent` -1: one line.
  std::string to_json(int indent = -1) const;

  // Fails with kInvalidArgument and a sentence that names what is wrong.
  static Result<TuningTable> from_json(std::string_view text);

  bool operator==(const TuningTable&) const = default;
};

// The file that a job reads and `isthmus tune` writes by default: ISTHMUS_TUNE_FILE, else
// isthmus/tuning.json in XDG_CACHE_HOME or HOME/.cache. Empty where there is none: "none", or no
// home.
std::string tuning_path();

// Reads a table for this machine. Fails with kIo when the file cannot be read (sys_errno says why),
// with kInvalidArgument when it is malformed, with kUnsupported when it is another machine's.
Result<TuningTable> read_tuning(const std::string& path);

// What this process chooses by where it decides: one line of JSON, empty for the built-in costs.
// A file that cannot be used is said once as a warning.
std::string load_tuning_text();

}  // namespace isthmus
