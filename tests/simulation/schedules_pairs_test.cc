// Goal: any two operations in a row leave each other's slots and messages alone, on one node and on
// several, for every pair of algorithms. Method: the symbolic proof of schedule/verify of both.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/algorithms/algorithm.h"
#include "schedule/verify.h"
#include "tests/simulation/schedules.h"

namespace isthmus {
namespace {

// Sanitizers look at the same code with fewer ranks.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRanksMax = 4;
#else
constexpr int kRanksMax = 64;
#endif

// Whether the algorithm orders what follows in mapped memory. After one that announces nothing the
// engine waits for everyone's `finished` before a slot is used again, which the proof does not
// model.
bool announces(const Algorithm& algorithm) {
  return !algorithm.applicable(Topology::grid(3, 1), {0, false}) || sees_nodes(algorithm);
}

class PairTest : public testing::Test {
 protected:
  void TearDown() override {
    std::printf("%d pairs, %.2f s of one core\n", pairs_,
                static_cast<double>(std::clock() - start_) / CLOCKS_PER_SEC);
  }

  // Every algorithm that `wanted` admits before and after every other, and itself: rooted ones with
  // the first and the last rank as root.
  template <typename Wanted>
  void prove_pairs(const Topology& topology, const Tuning& pieces, const Wanted& wanted) {
    if (topology.ranks() > kRanksMax) {
      return;
    }
    std::vector<std::vector<Schedule>> all;
    for (const Algorithm& algorithm : algorithms()) {
      if (!algorithm.applicable(topology, {0, false}) || !wanted(algorithm)) {
        continue;
      }
      const Tuning tuning = has_pieces(algorithm, topology) ? pieces : Tuning{};
      const int roots = op_traits(algorithm.op).rooted ? topology.ranks() : 1;
      for (int root = 0; root < roots; root += std::max(1, roots - 1)) {
        all.push_back(build_all(algorithm, topology, static_cast<std::uint32_t>(root), tuning));
      }
    }
    // verify_pair() looks at both orders.
    for (std::size_t first = 0; first < all.size() && !HasFatalFailure(); ++first) {
      for (std::size_t second = first; second < all.size(); ++second) {
        prove_pair(all[first], all[second], topology);
      }
    }
  }

 private:
  void prove_pair(const std::vector<Schedule>& first, const std::vector<Schedule>& second,
                  const Topology& topology) {
    ++pairs_;
    for (const Delivery delivery : {Delivery::kEager, Delivery::kRendezvous}) {
      const Status status = verify_pair(first, second, topology, delivery);
      ASSERT_TRUE(status.ok()) << first[0].algorithm << " and " << second[0].algorithm << " on "
                               << topology.nodes() << " nodes, " << topology.ranks()
                               << " ranks: " << status.error().message;
    }
  }

  int pairs_ = 0;
  std::clock_t start_ = std::clock();
};

// Operations in a row on one ring of slots.
TEST_F(PairTest, OneNode) {
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 12}) {
    prove_pairs(Topology::grid(1, ranks), {4, 3, 1}, announces);
  }
}

// Operations in a row on several nodes, even, uneven and scattered.
TEST_F(PairTest, Nodes) {
  for (const Topology& topology :
       {Topology::grid(2, 2), Topology::grid(2, 3), Topology::grid(3, 2), Topology::grid(2, 4),
        Topology::grid(4, 2), Topology::grid(3, 3), Topology::grid(4, 4),
        Topology::make(std::vector<int>{0, 0, 0, 1, 1}).value(), Topology::grid(4, 2, 2),
        Topology::grid(5, 2, 2), Topology::make(std::vector<int>{0, 1, 1, 1}).value(),
        Topology::make(std::vector<int>{0, 1, 2, 0, 1, 0}).value(),
        Topology::make(std::vector<int>{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3}).value()}) {
    prove_pairs(topology, {4, 3, 1}, announces);
  }
}

TEST_F(PairTest, OtherSizes) {
  for (const Tuning& tuning : three_tunings()) {
    prove_pairs(Topology::grid(1, 4), tuning, announces);
    prove_pairs(Topology::grid(2, 2), tuning, announces);
  }
}

// Messages of two operations between the same ranks must not be taken for one another. A rank that
// shares memory with nobody has no slots, and all algorithms may follow one another.
TEST_F(PairTest, Messages) {
  for (const int ranks : {2, 3, 4, 5, 7, 8, 12}) {
    prove_pairs(Topology::grid(ranks, 1), {4, 3, 1}, any);
  }
  const std::vector<int> one_node(5, 0);
  prove_pairs(Topology::make(one_node, {false}).value(), {4, 3, 1}, any);
  const auto silent = [](const Algorithm& algorithm) { return !announces(algorithm); };
  prove_pairs(Topology::grid(2, 2), {4, 3, 1}, silent);
  prove_pairs(Topology::grid(3, 2), {2, 2, 1}, silent);
}

}  // namespace
}  // namespace isthmus
