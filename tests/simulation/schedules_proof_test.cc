// Goal: every algorithm of the table is right for every group of up to 64 ranks on one node, for
// every nodes x ranks-per-node with a product of up to 64, on uneven nodes, for all roots and three
// sizes, in eager and rendezvous delivery. Method: the symbolic proof of schedule/verify.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/algorithms/algorithm.h"
#include "schedule/verify.h"
#include "tests/simulation/schedules.h"

namespace isthmus {
namespace {

// Sanitizers look at the same code with fewer ranks.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRanksMax = 16;
#else
constexpr int kRanksMax = 64;
#endif

class ProofTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const auto& [name, spent] : spent_) {
      std::printf("%-28s %6d proofs %8.2f s of one core\n", name.c_str(), spent.proofs,
                  spent.seconds);
    }
  }

  void prove(const Algorithm& algorithm, const Topology& topology, std::uint32_t root,
             const Tuning& tuning) {
    const std::clock_t start = std::clock();
    const std::vector<Schedule> schedules = build_all(algorithm, topology, root, tuning);
    for (const Delivery delivery : {Delivery::kEager, Delivery::kRendezvous}) {
      const Status status = verify(schedules, topology, delivery);
      ASSERT_TRUE(status.ok()) << where(algorithm, topology, root, tuning) << ": "
                               << status.error().message;
      // Nothing but messages depends on the delivery.
      if (topology.nodes() == 1 && !schedules.empty() && schedules[0].in_order) {
        break;
      }
    }
    Spent& spent = spent_[std::string(algorithm.name)];
    ++spent.proofs;
    spent.seconds += static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }

  // All algorithms that `wanted` admits, for every so many-th root and all sizes.
  template <typename Wanted>
  void prove_all(const Topology& topology, const Wanted& wanted, int every = 1) {
    for (const Algorithm& algorithm : algorithms()) {
      if (!fits_best(algorithm, topology, 0) || !wanted(algorithm)) {
        continue;
      }
      const int roots = op_traits(algorithm.op).rooted ? topology.ranks() : 1;
      for (const Tuning& tuning : three_tunings()) {
        for (int root = 0; root < roots && !HasFatalFailure(); root += every) {
          prove(algorithm, topology, static_cast<std::uint32_t>(root), tuning);
        }
        if (!has_pieces(algorithm, topology)) {
          break;
        }
      }
    }
  }

 private:
  struct Spent {
    int proofs = 0;
    double seconds = 0.0;
  };

  std::map<std::string, Spent> spent_;
};

TEST_F(ProofTest, OneNodeOfUpTo64Ranks) {
  for (int ranks = 1; ranks <= kRanksMax && !HasFatalFailure(); ++ranks) {
    prove_all(Topology::grid(1, ranks), any);
  }
}

TEST_F(ProofTest, NodesTimesRanksUpTo64) {
  for (int nodes = 2; nodes <= kRanksMax; ++nodes) {
    for (int locals = 1; nodes * locals <= kRanksMax && !HasFatalFailure(); ++locals) {
      prove_all(Topology::grid(nodes, locals), sees_nodes);
    }
  }
}

TEST_F(ProofTest, UnevenAndScatteredNodes) {
  const std::vector<std::vector<int>> placements = {
      {0, 0, 1},
      {0, 1, 1},
      {0, 0, 0, 1, 1},
      {0, 1, 0, 1},
      {0, 1, 2, 0, 1, 0},
      {2, 2, 2, 2, 7, 5},
      {0, 1, 1, 1, 1, 1, 1},
      {0, 0, 0, 0, 0, 1, 1, 2, 2, 2},
      {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3}};
  for (const std::vector<int>& placement : placements) {
    prove_all(Topology::make(placement).value(), sees_nodes);
  }
}

// Whether the algorithm's schedules depend on racks at all.
bool sees_racks(const Algorithm& algorithm) {
  const Topology blind = Topology::grid(6, 2);
  const Topology racked = Topology::grid(6, 2, 3);
  if (!sees_nodes(algorithm) || !fits_best(algorithm, blind, 0)) {
    return false;
  }
  const std::uint32_t root = op_traits(algorithm.op).rooted ? 11 : 0;
  const std::vector<Schedule> without = build_all(algorithm, blind, root, {2, 2, 1, 64});
  const std::vector<Schedule> with = build_all(algorithm, racked, root, {2, 2, 1, 64});
  const auto differ = [](const Schedule& one, const Schedule& other) {
    return one.hash() != other.hash();
  };
  return std::mismatch(without.begin(), without.end(), with.begin(), std::not_fn(differ)).first !=
         without.end();
}

// Racks x nodes x locals up to 64 ranks; the last rack is smaller where the nodes do not fill it.
TEST_F(ProofTest, RacksTimesNodesTimesRanksUpTo64) {
  for (const int locals : {1, 2, 3}) {
    for (int nodes = 3; nodes * locals <= kRanksMax; nodes += nodes < 9 ? 1 : 23) {
      for (int near = 1; near < nodes && !HasFatalFailure(); near += near < 4 ? 1 : 5) {
        prove_all(Topology::grid(nodes, locals, near), sees_racks, nodes < 9 ? 3 : 17);
      }
    }
  }
}

TEST_F(ProofTest, UnevenAndScatteredRacks) {
  struct Placement {
    std::vector<int> node_of;
    std::vector<int> rack_of;
  };

  const std::vector<Placement> placements = {
      {{0, 0, 1, 2}, {0, 0, 1, 1}},
      {{0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 1, 1, 1, 1, 1, 1, 1, 1}},
      {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2}},
      {{0, 1, 2, 0, 1, 0, 3, 3, 4}, {5, 7, 5, 5, 7, 5, 7, 7, 5}},
      {{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3},
       {3, 1, 4, 1, 3, 3, 3, 1, 3, 3, 3, 1, 3, 1, 3, 3}},
  };
  for (const Placement& placement : placements) {
    prove_all(Topology::make(placement.node_of, {}, placement.rack_of).value(), sees_racks);
  }
}

TEST_F(ProofTest, NodesWithoutSharedMemory) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    const std::vector<int> node_of(static_cast<std::size_t>(ranks), 0);
    prove_all(Topology::make(node_of, {false}).value(), any);
  }
}

// What select_algorithm() really asks for, on the groups of the first machines.
TEST_F(ProofTest, TuningsOfRealSizes) {
  for (const Topology& topology : {Topology::grid(1, 2), Topology::grid(1, 4), Topology::grid(2, 2),
                                   Topology::grid(4, 1), Topology::grid(2, 4)}) {
    for (const Algorithm& algorithm : algorithms()) {
      for (std::size_t bytes = 8; bytes <= (std::size_t{64} << 20); bytes *= 8) {
        const Payload payload = {bytes, false};
        if (fits_best(algorithm, topology, bytes) && !HasFatalFailure()) {
          prove(algorithm, topology, 0, algorithm.tune(topology, payload));
        }
      }
    }
  }
}

}  // namespace
}  // namespace isthmus
