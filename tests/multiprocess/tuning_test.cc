// Goal: all ranks choose by rank 0's tuning table, whatever the others have, and one that cannot be
// used changes nothing. Method: tables that make one or the other algorithm the fast one, in files
// that differ from rank to rank; the answer must be the same on all, and sums right.

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/temp_folder.h"
#include "base/version.h"
#include "collectives/select.h"
#include "collectives/tuning_table.h"
#include "tests/multiprocess/ranks.h"

namespace isthmus {
namespace {

using testing::Ranks;

constexpr std::size_t kCount = std::size_t{1} << 18;

// A table in which `fast` takes a hundredth of what is expected.
std::string table_with(const char* fast) {
  TuningTable table;
  table.version = std::string(kVersion);
  table.machine = MachineKey::read();
  for (const double sharing : {1.0, 2.0}) {
    TunedRanks tuned;
    tuned.costs.sharing = sharing;
    tuned.algorithms = {{OpKind::kAllReduce, fast, {{1024, 1.0, 0.01}}}};
    table.ranks.push_back(tuned);
  }
  return table.to_json();
}

class Tuning : public ::testing::Test {
 protected:
  std::string file(const char* name, const std::string& text) {
    std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  // Every rank's exit code says that it chose `expected` (empty: anything) and the sum was right.
  static std::vector<int> codes(std::vector<std::string> files, const std::string& expected,
                                std::vector<std::string> nodes = {}) {
    Ranks::Options options;
    options.size = static_cast<int>(files.size());
    options.node_ids = std::move(nodes);
    options.tune_files = std::move(files);
    Ranks ranks(options, [&](World& world) {
      std::vector<float> data(kCount, static_cast<float>(world.rank() + 1));
      const Call call{OpKind::kAllReduce, DType::kFloat32, RedOp::kSum, 0,
                      data.data(),        data.data(),     kCount};
      const std::string chosen = world.communicator().algorithm_of(call);
      if (!expected.empty() && chosen != expected) {
        std::fprintf(stderr, "rank %d chose %s\n", world.rank(), chosen.c_str());
        return 1;
      }
      if (!world.communicator().run(call).ok()) {
        return 2;
      }
      const int twice = world.size() * (world.size() + 1);
      const float sum = static_cast<float>(twice) / 2;
      return data.front() == sum && data.back() == sum ? 0 : 3;
    });
    return ranks.wait_all();
  }

  TempFolder folder_ = TempFolder::create("tuning").value();
};

TEST_F(Tuning, RankZeroDecidesForAll) {
  const std::string flat = file("flat", table_with("flat_all_reduce"));
  const std::string slice = file("slice", table_with("slice_all_reduce"));
  const std::vector<int> right(3, 0);
  EXPECT_EQ(codes({flat, slice, "none"}, "flat_all_reduce"), right);
  EXPECT_EQ(codes({slice, flat, flat}, "slice_all_reduce"), right);
}

// Where a message costs much and a byte little, few messages are the fastest, and the reverse.
TEST_F(Tuning, NodesGoByWhatIsMeasuredBetweenThem) {
  Topology topology = Topology::grid(4, 1);
  std::vector<std::string> picked;
  for (const LinkClass link : {LinkClass{5000.0, 1.0}, LinkClass{1.0, 5000.0}}) {
    topology.set_between(link);
    const Payload payload = {.bytes = kCount * sizeof(float)};
    picked.emplace_back(
        select_algorithm(topology, OpKind::kAllReduce, payload, "").value().algorithm->name);
    TuningTable table = TuningTable::from_json(table_with("flat_all_reduce")).value();
    table.ranks.clear();
    table.between = link;
    const std::string path = file(picked.back().c_str(), table.to_json());
    EXPECT_EQ(codes({path, "none", "none", "none"}, picked.back(), {"a", "b", "c", "d"}),
              std::vector<int>(4, 0));
  }
  EXPECT_NE(picked[0], picked[1]);
}

TEST_F(Tuning, WhatCannotBeUsedChangesNothing) {
  const std::string flat = file("flat", table_with("flat_all_reduce"));
  TuningTable foreign = TuningTable::from_json(table_with("flat_all_reduce")).value();
  foreign.machine.processors += 1;
  for (const std::string& bad : {file("bad", "{\"format\": 1"), file("foreign", foreign.to_json()),
                                 folder_.path() + "/missing", std::string("none")}) {
    EXPECT_EQ(codes({bad, flat}, ""), std::vector<int>(2, 0)) << bad;
  }
}

}  // namespace
}  // namespace isthmus
