// Goal: cost_of() counts what a schedule moves. Method: hand-made schedules with known counts, for
// sizes that do not divide evenly.

#include "schedule/cost.h"

#include <vector>

#include <gtest/gtest.h>

#include "schedule/builder.h"

namespace isthmus {
namespace {

Builder start(std::uint32_t rank, std::uint32_t ranks, const Partition& partition) {
  Builder::Shape shape;
  shape.op = OpKind::kAllReduce;
  shape.rank = rank;
  shape.ranks = ranks;
  shape.algorithm = "by_hand";
  shape.partition = partition;
  return Builder(shape);
}

TEST(CostTest, CountsBytesOfUnevenBlocks) {
  // 1000 bytes in 4 blocks of 256, 256, 256, 232.
  Builder b = start(0, 2, {false, 4, 0});
  b.send(1, Builder::input(0), 0, 2);
  b.recv(1, Builder::scratch(0), 3, 4);
  b.reduce(Builder::scratch(0), Builder::input(3), 3, 4, true);
  b.copy(Builder::output(3), Builder::scratch(0), 3, 4);
  b.signal(1);
  const Schedule schedule = b.build().value();
  const RankCost apart = cost_of(schedule, Topology::grid(2, 1), 1000);
  EXPECT_EQ(apart.messages, 2U);
  EXPECT_EQ(apart.bytes_sent, 512U);
  EXPECT_EQ(apart.bytes_neck_out, 512U);
  EXPECT_EQ(apart.bytes_neck_in, 232U);
  EXPECT_EQ(apart.bytes_copied, 232U);
  EXPECT_EQ(apart.bytes_reduced, 232U);
  const RankCost together = cost_of(schedule, Topology::grid(1, 2), 1000);
  EXPECT_EQ(together.bytes_sent, 512U);
  EXPECT_EQ(together.bytes_neck_out, 0U);
}

TEST(CostTest, CoreTimeFollowsTheLinks) {
  Topology topology = Topology::grid(1, 3);
  topology.set_links({0.5, 100.0}, {10.0, 1000.0}, 30.0);
  Builder b = start(0, 3, {});
  b.copy(Builder::scratch(0), Builder::input(0), 0, 1);
  b.reduce_units(Builder::output(0), Builder::scratch(0), 3, 0, 0, 1, true);
  const RankCost cost = cost_of(b.build().value(), topology, std::size_t{2} << 20);
  EXPECT_DOUBLE_EQ(cost.core_us(), 2 * 100.0 + 2 * 2 * 30.0);
}

TEST(CostTest, BoundIsTheBusiestResource) {
  Topology topology = Topology::grid(2, 1);
  topology.set_links({0.5, 100.0}, {10.0, 1000.0}, 30.0);
  std::vector<Schedule> schedules;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Builder b = start(rank, 2, {});
    b.send(1 - rank, Builder::input(0), 0, 1);
    b.recv(1 - rank, Builder::scratch(0), 0, 1);
    b.reduce(Builder::scratch(0), Builder::input(0), 0, 1, true);
    b.copy(Builder::output(0), Builder::scratch(0), 0, 1);
    schedules.push_back(b.build().value());
  }
  const GroupCost cost = cost_of(schedules, topology, std::size_t{1} << 20);
  EXPECT_EQ(cost.neck_out[0], std::size_t{1} << 20);
  EXPECT_EQ(cost.neck_in[1], std::size_t{1} << 20);
  EXPECT_DOUBLE_EQ(cost.bound_us, 1000.0);
}

}  // namespace
}  // namespace isthmus
