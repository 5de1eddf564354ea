// Goal: Builder numbers messages, infers exactly the dependencies that builder.h promises, sums up
// the units and refuses what it must. Method: hand-made step lists with the expected edges.

#include "schedule/builder.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/reduce.h"

namespace isthmus {
namespace {

static_assert(kReduceOperandsMax == kReduceSourcesMax, "the kernels take what schedules ask for");

using Edges = std::set<std::pair<std::uint32_t, std::uint32_t>>;

Builder start(OpKind op, const Partition& partition, std::uint32_t rank = 1,
              std::uint32_t ranks = 4) {
  Builder::Shape shape;
  shape.op = op;
  shape.rank = rank;
  shape.ranks = ranks;
  shape.local = rank;
  shape.locals = ranks;
  shape.algorithm = "by_hand";
  shape.partition = partition;
  return Builder(shape);
}

Edges edges_of(const Schedule& schedule) {
  Edges result;
  for (std::uint32_t step = 0; step < schedule.steps.size(); ++step) {
    for (std::uint32_t at = schedule.release_begin[step]; at < schedule.release_begin[step + 1];
         ++at) {
      result.emplace(step, schedule.releases[at]);
    }
  }
  return result;
}

TEST(BuilderTest, ReadAfterWriteAndItsKin) {
  Builder b = start(OpKind::kAllReduce, {false, 4, 0});
  b.recv(0, Builder::scratch(0), 0, 1);                           // 0
  b.reduce(Builder::scratch(0), Builder::input(0), 0, 1, false);  // 1 after 0
  b.send(2, Builder::scratch(0), 0, 1);                           // 2 after 1
  b.recv(0, Builder::scratch(0), 1, 2);                           // 3 after 1 and 2
  b.recv(0, Builder::scratch(1), 2, 3);                           // 4: nothing
  b.copy(Builder::output(0), Builder::scratch(1), 0, 1);          // 5 after 4, and 1 in place
  const Schedule schedule = b.build().value();
  EXPECT_EQ(edges_of(schedule), (Edges{{0, 1}, {1, 2}, {1, 3}, {2, 3}, {4, 5}, {1, 5}}));
  EXPECT_FALSE(schedule.in_order);
  EXPECT_EQ(schedule.scratch_units, 2U);
  EXPECT_EQ(schedule.wait_count[3], 2U);
}

TEST(BuilderTest, LongSpansConflictMarkByMark) {
  Builder b = start(OpKind::kAllReduce, {false, 8, 0});
  b.recv(0, Builder::scratch(0), 0, 4);  // 0: units 0 to 3
  b.recv(0, Builder::scratch(4), 4, 8);  // 1: units 4 to 7
  b.send(2, Builder::scratch(3), 3, 5);  // 2: units 3 and 4
  b.send(2, Builder::scratch(0), 0, 3);  // 3: units 0 to 2
  const Schedule schedule = b.build().value();
  EXPECT_EQ(edges_of(schedule), (Edges{{0, 2}, {1, 2}, {0, 3}}));
  EXPECT_EQ(schedule.scratch_units, 8U);
}

TEST(BuilderTest, MessagesAreNumberedPerPeer) {
  Builder b = start(OpKind::kBarrier, {});
  b.signal(0);
  b.signal(2);
  b.signal(0);
  b.wait_signal(0);
  const Schedule schedule = b.build().value();
  EXPECT_EQ(schedule.steps[0].value, 0U);
  EXPECT_EQ(schedule.steps[1].value, 0U);
  EXPECT_EQ(schedule.steps[2].value, 1U);
  EXPECT_EQ(schedule.steps[3].value, 0U);
}

TEST(BuilderTest, SignalsFollowSignals) {
  Builder b = start(OpKind::kBarrier, {});
  b.signal(2);       // 0
  b.wait_signal(0);  // 1
  b.signal(3);       // 2 after 1
  b.wait_signal(3);  // 3
  b.publish(0, 1);   // 4 after 1 and 3
  EXPECT_EQ(edges_of(b.build().value()), (Edges{{1, 2}, {1, 4}, {3, 4}}));
}

TEST(BuilderTest, LinesOrderMappedSteps) {
  Builder b = start(OpKind::kAllReduce, {false, 2, 0});
  b.copy(b.stage(0), Builder::input(0), 0, 1);                          // 0
  b.publish(0, 1);                                                      // 1
  b.await_all(0, 1);                                                    // 2
  b.copy(Builder::scratch(0), Builder::of_local(b.stage(0), 2), 0, 1);  // 3
  b.send(0, Builder::scratch(0), 0, 1);                                 // 4
  b.publish(1, 1);                                                      // 5
  b.await_all(1, 1);                                                    // 6
  b.copy(b.stage(0), Builder::input(1), 1, 2);                          // 7
  const Schedule schedule = b.build().value();
  EXPECT_EQ(edges_of(schedule),
            (Edges{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {3, 5}, {2, 5}, {5, 6}, {6, 7}, {0, 7}}));
  EXPECT_EQ(schedule.stage_units, 1U);
}

TEST(BuilderTest, GateHoldsTheOutputBack) {
  Builder b = start(OpKind::kAllGather, {true, 4, 0});
  b.signal(2);       // 0
  b.wait_signal(0);  // 1
  b.gate_output();
  b.send(2, Builder::input(0), 1, 2);                   // 2: not held back
  b.recv(0, Builder::output(0), 0, 1);                  // 3 after 1
  b.copy(Builder::output(1), Builder::input(0), 1, 2);  // 4 after 1, and 2 in place
  EXPECT_EQ(edges_of(b.build().value()), (Edges{{1, 3}, {1, 4}, {2, 4}}));
}

TEST(BuilderTest, WideGateGetsAJoint) {
  Builder b = start(OpKind::kAllGather, {true, 8, 0}, 0, 8);
  for (std::uint32_t peer = 1; peer < 8; ++peer) {
    b.recv(peer, Builder::scratch(peer), peer, peer + 1);
  }
  b.gate_output();
  for (std::uint32_t peer = 1; peer < 8; ++peer) {
    b.copy(Builder::output(peer), Builder::scratch(peer), peer, peer + 1);
  }
  const Schedule schedule = b.build().value();
  EXPECT_EQ(schedule.steps[7].kind, StepKind::kAwait);
  EXPECT_EQ(schedule.steps[7].count, 0U);
  EXPECT_EQ(schedule.wait_count[7], 7U);
  EXPECT_EQ(schedule.wait_count[8], 2U);
}

TEST(BuilderTest, InOrderNeedsNoDependencies) {
  Builder b = start(OpKind::kAllReduce, {});
  b.in_order();
  b.copy(b.line(), Builder::input(0), 0, 1);
  b.publish(0, 1);
  b.await_all(0, 1);
  b.reduce_locals(Builder::output(0), b.line(), 0, 1, true, true);
  const Schedule schedule = b.build().value();
  EXPECT_TRUE(schedule.in_order);
  EXPECT_TRUE(schedule.releases.empty());
  EXPECT_TRUE(schedule.uses_line);
  EXPECT_EQ(schedule.steps.size(), 4U);
}

TEST(BuilderTest, AwaitingNobodyIsNoStep) {
  Builder b = start(OpKind::kBarrier, {}, 0, 1);
  b.publish(0, 1);
  b.await_all(0, 1);
  EXPECT_EQ(b.build().value().steps.size(), 1U);
}

TEST(BuilderTest, RefusesTooManySteps) {
  Builder b = start(OpKind::kBarrier, {});
  for (std::size_t i = 0; i <= Builder::kStepsMax; ++i) {
    b.signal(0);
  }
  const Result<Schedule> schedule = b.build();
  ASSERT_FALSE(schedule.ok());
  EXPECT_EQ(schedule.error().code, Code::kInvalidArgument);
}

TEST(BuilderTest, RefusesSpansWithoutAnAddress) {
  Builder across = start(OpKind::kAllGather, {true, 4, 1});
  across.recv(0, Builder::scratch(0), 1, 3);
  EXPECT_FALSE(across.build().ok());
  Builder within = start(OpKind::kAllGather, {true, 4, 1});
  within.recv(0, Builder::scratch(0), 2, 4);
  EXPECT_TRUE(within.build().ok());
  Builder outside = start(OpKind::kAllReduce, {false, 4, 0});
  outside.send(0, Builder::input(3), 3, 5);
  EXPECT_FALSE(outside.build().ok());
  Builder line = start(OpKind::kAllReduce, {false, 4, 0});
  line.copy(line.line(), Builder::input(0), 0, 2);
  EXPECT_FALSE(line.build().ok());
}

TEST(BuilderTest, RefusesMoreOperandsThanAKernelTakes) {
  for (const std::uint32_t count : {kReduceOperandsMax, kReduceOperandsMax + 1}) {
    Builder b = start(OpKind::kAllReduce, {});
    b.reduce_units(Builder::output(0), Builder::scratch(0), count, 0, 0, 1, true);
    EXPECT_EQ(b.build().ok(), count == kReduceOperandsMax);
  }
}

TEST(BuilderTest, SchedulesPrintAndHash) {
  const auto make = [](std::uint32_t peer) {
    Builder b = start(OpKind::kAllReduce, {});
    b.send(peer, Builder::input(0), 0, 1);
    b.recv(peer, Builder::scratch(0), 0, 1);
    b.reduce(Builder::scratch(0), Builder::input(0), 0, 1, true);
    return b.build().value();
  };
  EXPECT_EQ(make(0).hash(), make(0).hash());
  EXPECT_NE(make(0).hash(), make(2).hash());
  const std::string text = make(2).to_string();
  EXPECT_NE(text.find("Recv from rank 2, message 0, marks [0, 1) -> scratch 0"), std::string::npos)
      << text;
  EXPECT_NE(text.find("Reduce scratch 0 with input 0, marks [0, 1), finish"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace isthmus
