// Goal: the choice of algorithms is pure, constant within a size class, obeys ISTHMUS_ALGO, keeps
// 16-bit sums to one rounding per level, and is near the best. Method: sweep topologies and sizes;
// "best" is the least simulated time of all applicable algorithms.

#include "collectives/select.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "schedule/simulate.h"
#include "tests/simulation/schedules.h"

namespace isthmus {
namespace {

constexpr OpKind kOps[] = {OpKind::kBarrier,       OpKind::kAllReduce, OpKind::kAllGather,
                           OpKind::kReduceScatter, OpKind::kBroadcast, OpKind::kReduce,
                           OpKind::kGather,        OpKind::kScatter,   OpKind::kAllToAll};

// The link between racks is that of one node.
Topology in_racks(Topology topology) {
  topology.set_across({40.0, 840.0});
  return topology;
}

std::vector<Topology> groups() {
  return {Topology::grid(1, 1),
          Topology::grid(1, 2),
          Topology::grid(1, 4),
          Topology::grid(1, 8),
          Topology::grid(2, 1),
          Topology::grid(4, 1),
          Topology::grid(8, 1),
          Topology::grid(2, 2),
          Topology::grid(2, 4),
          Topology::grid(4, 4),
          in_racks(Topology::grid(4, 2, 2)),
          in_racks(Topology::grid(6, 2, 2)),
          in_racks(Topology::grid(8, 1, 4)),
          in_racks(Topology::grid(5, 2, 3)),
          Topology::make(std::vector<int>{0, 0, 0, 1, 1}).value(),
          Topology::make(std::vector<int>{0, 0, 0}, {false}).value()};
}

double simulated_us(const Algorithm& algorithm, const Topology& topology, const Payload& payload) {
  const std::vector<Schedule> schedules =
      build_all(algorithm, topology, 0, algorithm.tune(topology, payload));
  return simulate(schedules, topology, payload.bytes).value().makespan_us;
}

TEST(SelectTest, EveryOperationHasAnAlgorithmEverywhere) {
  for (const Topology& topology : groups()) {
    for (const OpKind op : kOps) {
      for (std::size_t bytes = 0; bytes <= (std::size_t{1} << 34); bytes = bytes * 3 + 1) {
        for (const bool rounds : {false, true}) {
          const Result<Choice> choice = select_algorithm(topology, op, {bytes, rounds}, "");
          ASSERT_TRUE(choice.ok()) << choice.error().message;
          EXPECT_EQ(choice->algorithm->op, op);
          EXPECT_TRUE(choice->algorithm->applicable(topology, {bytes, rounds}));
        }
      }
    }
  }
}

TEST(SelectTest, ConstantWithinAClass) {
  for (const Topology& topology : groups()) {
    for (const OpKind op : kOps) {
      for (std::uint32_t index = 1; index < 24; ++index) {
        const std::size_t last = size_class_bytes(index);
        const std::size_t first = size_class_bytes(index - 1) + 1;
        const Choice at_last = select_algorithm(topology, op, {last, false}, "").value();
        for (const std::size_t bytes : {first, (first + last) / 2}) {
          EXPECT_EQ(select_algorithm(topology, op, {bytes, false}, "").value(), at_last);
        }
      }
    }
  }
}

TEST(SelectTest, NearTheBestSimulatedTime) {
  for (const Topology& topology : groups()) {
    for (const OpKind op : kOps) {
      for (std::size_t bytes = 64; bytes <= (std::size_t{16} << 20); bytes *= 4) {
        const Payload payload = {bytes, false};
        const Choice choice = select_algorithm(topology, op, payload, "").value();
        double best_us = std::numeric_limits<double>::infinity();
        for (const Algorithm& algorithm : algorithms()) {
          if (algorithm.op == op && algorithm.applicable(topology, payload)) {
            best_us = std::min(best_us, simulated_us(algorithm, topology, payload));
          }
        }
        // A microsecond for what the closed forms leave out of small ones; between racks they
        // prefer a second hop to many messages at once, whose cost the simulator leaves out.
        const double slack_us = topology.racks() > 1 ? topology.between().alpha_us : 1.0;
        EXPECT_LE(simulated_us(*choice.algorithm, topology, payload), 1.35 * best_us + slack_us)
            << where(*choice.algorithm, topology, 0, choice.tuning) << ", " << bytes << " bytes";
      }
    }
  }
}

// Each message also takes a processor: ranks that share one send theirs in turn.
TEST(SelectTest, FewMessagesWhereRanksShareProcessors) {
  Topology topology = Topology::grid(2, 2);
  NodeCosts costs = topology.node_costs();
  costs.sharing = 2.0;
  topology.set_node_costs(costs);
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{512}, std::size_t{4096}}) {
    const auto choice =
        select_algorithm(topology, OpKind::kAllReduce, {.bytes = bytes}, "", nullptr);
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(choice->algorithm->name, "leader_all_reduce") << bytes;
  }
}

// HYBRID_SHARD's reduction in one call, where a link carries half of what a rank reads inside its
// node: by how much it beats a reduce_scatter inside the nodes and then an all_reduce between them.
// The lanes of a node's ranks share its link.
TEST(SelectTest, OneReductionBeatsTwo) {
  constexpr int kShards = 2;
  for (const std::size_t mib : {std::size_t{16}, std::size_t{64}, std::size_t{256}}) {
    const std::size_t bytes = mib << 20;
    const auto best_us = [](const Topology& topology, OpKind op, const Payload& payload) {
      const Choice choice = select_algorithm(topology, op, payload, "").value();
      return simulated_us(*choice.algorithm, topology, payload);
    };
    const Payload block = {.bytes = bytes / kShards, .shards = kShards};
    Topology whole = Topology::grid(2, kShards);
    const double read = whole.node_costs().read.at(static_cast<double>(bytes));
    whole.set_between({30.0, 2.0 * read});
    Topology lane = Topology::grid(2, 1);
    lane.set_between({30.0, 2.0 * read * kShards});
    const double inside =
        best_us(Topology::grid(1, kShards), OpKind::kReduceScatter, {.bytes = block.bytes});
    const double between = best_us(lane, OpKind::kAllReduce, {.bytes = block.bytes});
    const double once = best_us(whole, OpKind::kReduceShards, block);
    EXPECT_GE((inside + between) / once, 1.3) << mib << " MiB";
  }
}

// Rounding once per level means that no partial sum is combined again on the same level.
TEST(SelectTest, SixteenBitSumsRoundOncePerLevel) {
  for (const Topology& topology : groups()) {
    for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kReduce}) {
      for (std::size_t bytes = 8; bytes <= (std::size_t{64} << 20); bytes *= 4) {
        const Choice choice = select_algorithm(topology, op, {bytes, true}, "").value();
        const std::vector<Schedule> schedules =
            build_all(*choice.algorithm, topology, 0, choice.tuning);
        for (const Schedule& schedule : schedules) {
          const auto in_pairs = std::count_if(
              schedule.steps.begin(), schedule.steps.end(),
              [](const Step& step) { return step.kind == StepKind::kReduce && step.count == 0; });
          EXPECT_TRUE(in_pairs == 0 || topology.ranks() == 2) << choice.algorithm->name;
        }
      }
    }
  }
}

TEST(SelectTest, ForcedByName) {
  const Topology topology = Topology::grid(1, 4);
  const Payload payload = {1 << 20, false};
  const Choice forced =
      select_algorithm(topology, OpKind::kAllReduce, payload, "ring_all_reduce").value();
  EXPECT_EQ(forced.algorithm->name, "ring_all_reduce");
  // Other operations go on by cost.
  EXPECT_EQ(select_algorithm(topology, OpKind::kBarrier, payload, "ring_all_reduce").value(),
            select_algorithm(topology, OpKind::kBarrier, payload, "").value());
}

TEST(SelectTest, RefusesWhatDoesNotFit) {
  const Topology topology = Topology::grid(2, 2);
  const Result<Choice> unfit =
      select_algorithm(topology, OpKind::kAllReduce, {8, false}, "slot_all_reduce");
  ASSERT_FALSE(unfit.ok());
  EXPECT_EQ(unfit.error().code, Code::kInvalidArgument);
  const Result<Choice> unknown =
      select_algorithm(topology, OpKind::kAllReduce, {8, false}, "rings_all_reduce");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("'ring_all_reduce'"), std::string::npos)
      << unknown.error().message;
}

// Also beyond what one Reduce takes, where nodes make it possible.
TEST(SelectTest, LargeGroupsRoundOncePerLevelToo) {
  for (const Topology& topology : {Topology::grid(8, 16), Topology::grid(2, 64)}) {
    for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kReduce}) {
      for (const std::size_t bytes : {std::size_t{8}, std::size_t{4096}, std::size_t{1} << 20}) {
        const Choice choice = select_algorithm(topology, op, {bytes, true}, "").value();
        const std::string_view name = choice.algorithm->name;
        // Those that combine two operands at a time.
        for (const char* word : {"chain", "tree", "ring", "doubling", "halving"}) {
          EXPECT_TRUE(name.starts_with("two_level") || name.find(word) == name.npos)
              << name << ", " << bytes << " bytes";
        }
      }
    }
  }
}

}  // namespace
}  // namespace isthmus
