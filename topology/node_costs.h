#pragma once

#include <array>
#include <cstddef>

namespace isthmus {

// Microseconds per MiB of some work on memory, by its footprint: the bytes that the caller's
// buffers of one rank have together. They say which cache the work runs from. Between the points
// the rate goes with the logarithm of the footprint, beyond them it stays. Plain value.
struct RateCurve {
  static constexpr int kPoints = 4;

  std::array<double, kPoints> bytes = {};  // ascending
  std::array<double, kPoints> us_per_mib = {};

  // The same at every footprint.
  static RateCurve flat(double us_per_mib);

  double at(double footprint_bytes) const;

  // Points ascend, and everything is finite and positive (rates may be 0).
  bool sane() const;

  bool operator==(const RateCurve&) const = default;
};

// What work inside one node costs. The built-in numbers fit a server of the 2020s (L1, L2, L3,
// DRAM) until `isthmus tune` has measured. Plain value; any thread.
struct NodeCosts {
  static constexpr std::array<double, RateCurve::kPoints> kFootprints = {16384.0, 524288.0,
                                                                         8388608.0, 134217728.0};

  // An operation's fixed part for two ranks: from the call over publishing a flag until all have
  // seen all, on cores of their own; and what each further rank adds.
  double flag_us = 0.42;
  double flag_rank_us = 0.06;

  // The same when ranks outnumber processors: a hand-over by sched_yield, for each rank that shares
  // the processor.
  double switch_us = 1.1;

  // Looking at a flag that is already up, as in the middle of a pipeline.
  double look_us = 0.2;

  RateCurve copy = {kFootprints, {62.0, 45.0, 60.0, 95.0}};    // own memory to own memory
  RateCurve read = {kFootprints, {120.0, 85.0, 95.0, 130.0}};  // another rank's memory to own

  // A reduction: what every MiB of the result takes, and on top each operand beyond the first.
  RateCurve combine = {kFootprints, {55.0, 45.0, 60.0, 95.0}};
  RateCurve reduce = {kFootprints, {90.0, 48.0, 75.0, 110.0}};

  // Another process's memory to own, by the kernel. Nobody asks for it before it was measured: on
  // most machines staging is faster.
  RateCurve pull = {kFootprints, {1e6, 1e6, 1e6, 1e6}};

  // Ranks per processor that they may use, at least 1: work is done one after another then.
  double sharing = 1.0;

  bool measured = false;  // by `isthmus tune`, on this machine

  // Until everyone has seen everyone's flag.
  double wait_us(int ranks) const;

  bool sane() const;

  bool operator==(const NodeCosts&) const = default;
};

}  // namespace isthmus
