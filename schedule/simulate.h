#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "schedule/roles.h"
#include "schedule/schedule.h"
#include "schedule/verify.h"
#include "topology/topology.h"

namespace isthmus {

struct SimulateOptions {
  Delivery delivery = Delivery::kEager;
  bool timeline = false;          // keep every step's times
  std::vector<double> starts_us;  // when each rank calls; empty: all at 0
};

struct StepTimes {
  std::uint32_t rank = 0;
  std::uint32_t step = 0;
  double start_us = 0.0;
  double end_us = 0.0;
};

struct Simulation {
  double makespan_us = 0.0;
  std::vector<double> end_us;         // of each rank
  std::vector<double> neck_busy_us;   // of each node's outgoing direction
  std::vector<std::size_t> neck_out;  // bytes that left each node
  std::vector<double> rack_busy_us;   // the same of each rack's link to the others
  std::vector<std::size_t> rack_out;
  std::vector<StepTimes> timeline;  // in order of their ends
  std::size_t roles = 0;            // ranks that were simulated, one for all that do the same
  std::size_t steps = 0;            // of them together
};

// Runs the schedules of all ranks in model time. docs/simulation.md has the model. Every rank has
// one core for its copies and reductions (beta inside, gamma), and takes its ready steps in order
// of readiness. A message between nodes holds its sender's node's way out for bytes x beta, then
// the receiver's way in, which serves messages in the order in which they left; it arrives alpha
// later. To another rack it takes in between its turn on that rack's way out, then on the other's
// way in, for bytes x beta across each, all four overlapping; and alpha across. One within a node
// takes as long, but only on its rank's own way. A published line is seen alpha (inside) later.
// Congestion elsewhere is not modelled. What happens at one moment happens in waves, each in the
// order of local ranks and steps, whatever the numbers of ranks and nodes: what ranks do alike
// takes equally long. Time and memory are linear in steps (times log).
//
// Fails with kInternal on a deadlock or unpaired message; what verify() proves is not checked
// again. Pure; any thread.
Result<Simulation> simulate(std::span<const Schedule> schedules, const Topology& topology,
                            std::size_t bytes, const SimulateOptions& options = {});

// The same times to the last bit, of ranks that all call at once, with ranks that do the same
// simulated once (Roles::fold): the only way for very large groups. A timeline has the steps of one
// rank a role, the lowest. Fails as that, too.
Result<Simulation> simulate(const ScheduleSource& source, const Topology& topology,
                            std::size_t bytes, const SimulateOptions& options = {});

}  // namespace isthmus
