#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "collectives/algorithms/algorithm.h"
#include "schedule/schedule.h"

namespace isthmus {

// The subcommands of `isthmus`: what each was asked, and the function that does it and returns the
// exit code. Output goes to stdout, errors to stderr. Main thread only.

struct InfoOptions {
  bool json = false;
  bool env = false;  // the variables only

  // Of the topology file that `save` names; empty: none is written.
  std::string save;
  int ranks = 0;  // on each node; 0: one a processor
  int nodes = 1;
  double between_us = -1.0;  // alpha between nodes; negative: as measured, or built in
  double between_gbit = 0.0;
  int nodes_per_rack = 0;   // 0: one rack
  double across_us = -1.0;  // the same as between, of links between racks
  double across_gbit = 0.0;
};

int run_info(const InfoOptions& options);

// `info --save`: alone for this machine, or together with the other ranks of a job.
int run_info_save(const InfoOptions& options);

struct StatusOptions {
  bool json = false;
};

int run_status(const StatusOptions& options);

struct DoctorOptions {
  bool json = false;
};

int run_doctor(const DoctorOptions& options);

struct ScheduleOptions {
  OpKind op = OpKind::kAllReduce;
  bool op_given = false;
  std::string topology;  // file; empty: nodes of equal size, by the four that follow
  int ranks = 0;         // 0: not given, and so the others
  int nodes = 0;
  int locals = 0;
  int nodes_per_rack = 0;
  int rank = 0;
  int root = 0;
  std::uint64_t bytes = 1ULL << 20;
  bool bytes_given = false;
  bool rounds = false;      // a 16-bit dtype
  std::string algorithm;    // empty: the one that would be chosen
  bool rendezvous = false;  // simulate
  bool timeline = false;    // simulate
  bool json = false;        // explain, simulate
  std::string output;       // draw: the file
};

int run_schedule_list(const ScheduleOptions& options);
int run_schedule_show(const ScheduleOptions& options);
int run_schedule_verify(const ScheduleOptions& options);
int run_schedule_cost(const ScheduleOptions& options);
int run_schedule_simulate(const ScheduleOptions& options);
int run_schedule_draw(const ScheduleOptions& options);
int run_schedule_explain(const ScheduleOptions& options);

struct TuneOptions {
  std::vector<int> ranks;  // numbers of ranks to measure; empty: the usual ones
  std::string output;      // file; empty: where the library looks
  bool check = false;      // measure how good its predictions are, and write nothing
  bool json = false;
};

int run_tune(const TuneOptions& options);

}  // namespace isthmus
