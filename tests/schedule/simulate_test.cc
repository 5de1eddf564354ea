// Goal: the simulator keeps time as its header says. Method: hand-made schedules with closed forms:
// a ring of messages, a shared neck, published lines, late callers, a deadlock.

#include "schedule/simulate.h"

#include <vector>

#include <gtest/gtest.h>

#include "schedule/builder.h"
#include "schedule/cost.h"

namespace isthmus {
namespace {

constexpr std::size_t kMib = 1U << 20;

Builder start(const Topology& topology, std::uint32_t rank, const Partition& partition,
              bool mapped) {
  Builder::Shape shape;
  shape.op = OpKind::kAllReduce;
  shape.rank = rank;
  shape.ranks = static_cast<std::uint32_t>(topology.ranks());
  if (mapped) {
    shape.local = static_cast<std::uint32_t>(topology.local_of(static_cast<int>(rank)));
    shape.locals = static_cast<std::uint32_t>(topology.locals_of(static_cast<int>(rank)));
  }
  shape.algorithm = "by_hand";
  shape.partition = partition;
  return Builder(shape);
}

Topology timed(int nodes, int locals) {
  Topology topology = Topology::grid(nodes, locals);
  topology.set_links({1.0, 100.0}, {10.0, 1000.0}, 50.0);
  return topology;
}

// A ring reduce-scatter: P - 1 steps of alpha + beta + gamma on a block.
TEST(SimulateTest, RingHasItsClosedForm) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    const Topology topology = timed(ranks, 1);
    const auto count = static_cast<std::uint32_t>(ranks);
    std::vector<Schedule> schedules;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      Builder b = start(topology, rank, {false, count, 0}, false);
      for (std::uint32_t step = 0; step + 1 < count; ++step) {
        const std::uint32_t out = (rank + count - step) % count;
        const std::uint32_t in = (rank + 2 * count - step - 1) % count;
        b.send((rank + 1) % count, step == 0 ? Builder::input(out) : Builder::scratch(step - 1),
               out, out + 1);
        b.recv((rank + count - 1) % count, Builder::scratch(step), in, in + 1);
        b.reduce(Builder::scratch(step), Builder::input(in), in, in + 1, false);
      }
      schedules.push_back(b.build().value());
    }
    for (const Delivery delivery : {Delivery::kEager, Delivery::kRendezvous}) {
      SimulateOptions options;
      options.delivery = delivery;
      const Simulation run =
          simulate(schedules, topology, kMib * static_cast<std::size_t>(ranks), options).value();
      EXPECT_NEAR(run.makespan_us, (ranks - 1) * (10.0 + 1000.0 + 50.0), 1e-6) << ranks;
      EXPECT_EQ(run.neck_out[0], kMib * static_cast<std::size_t>(ranks - 1));
    }
  }
}

// Two ranks of a node send to another node at once: the neck takes them one after the other.
TEST(SimulateTest, NeckIsShared) {
  const Topology topology = timed(2, 2);
  std::vector<Schedule> schedules;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    Builder b = start(topology, rank, {}, false);
    if (rank < 2) {
      b.send(rank + 2, Builder::input(0), 0, 1);
    } else {
      b.recv(rank - 2, Builder::scratch(0), 0, 1);
    }
    schedules.push_back(b.build().value());
  }
  const Simulation run = simulate(schedules, topology, kMib).value();
  EXPECT_NEAR(run.makespan_us, 2010.0, 1e-6);
  EXPECT_NEAR(run.end_us[0], 1000.0, 1e-6);
  EXPECT_NEAR(run.neck_busy_us[0], 2000.0, 1e-6);
  EXPECT_NEAR(run.neck_busy_us[1], 0.0, 1e-6);
}

TEST(SimulateTest, RacksShareALink) {
  Topology topology = Topology::grid(4, 1, 2);
  topology.set_links({1.0, 100.0}, {10.0, 1000.0}, 50.0);
  topology.set_across({20.0, 1500.0});
  std::vector<Schedule> schedules;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    Builder b = start(topology, rank, {}, false);
    if (rank < 2) {
      b.send(rank + 2, Builder::input(0), 0, 1);
    } else {
      b.recv(rank - 2, Builder::output(0), 0, 1);
    }
    schedules.push_back(b.build().value());
  }
  const Simulation run = simulate(schedules, topology, kMib).value();
  EXPECT_EQ(run.end_us, (std::vector<double>{1000.0, 1000.0, 1520.0, 3020.0}));
  EXPECT_EQ(run.rack_out, (std::vector<std::size_t>{2 * kMib, 0}));
  EXPECT_EQ(run.rack_busy_us, (std::vector<double>{3000.0, 0.0}));
  const GroupCost cost = cost_of(schedules, topology, kMib);
  EXPECT_EQ(cost.rack_out, run.rack_out);
  EXPECT_EQ(cost.rack_in[1], 2 * kMib);
  EXPECT_EQ(cost.bound_us, 3000.0);
}

TEST(SimulateTest, LinesAreSeenAlphaLater) {
  const Topology topology = timed(1, 2);
  std::vector<Schedule> schedules;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Builder b = start(topology, rank, {}, true);
    b.in_order();
    b.copy(b.slot(0), Builder::input(0), 0, 1);
    b.publish(0, 1);
    b.await_all(0, 1);
    b.reduce_locals(Builder::output(0), b.slot(0), 0, 1, true, true);
    schedules.push_back(b.build().value());
  }
  SimulateOptions options;
  options.starts_us = {0.0, 30.0};
  options.timeline = true;
  const Simulation run = simulate(schedules, topology, kMib, options).value();
  EXPECT_NEAR(run.makespan_us, 30.0 + 100.0 + 1.0 + 50.0, 1e-6);
  EXPECT_EQ(run.timeline.size(), 8U);
  for (std::size_t i = 1; i < run.timeline.size(); ++i) {
    EXPECT_LE(run.timeline[i - 1].end_us, run.timeline[i].end_us);
  }
}

TEST(SimulateTest, DeadlockIsAnError) {
  const Topology topology = timed(2, 1);
  std::vector<Schedule> schedules;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Builder b = start(topology, rank, {}, false);
    b.in_order();
    b.wait_signal(1 - rank);
    b.signal(1 - rank);
    schedules.push_back(b.build().value());
  }
  EXPECT_EQ(simulate(schedules, topology, 0).error().code, Code::kInternal);
  EXPECT_EQ(simulate(std::span(schedules).first(1), topology, 0).error().code,
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus
