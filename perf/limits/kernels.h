#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "perf/limits/team.h"

namespace isthmus::limits {

// Everything a kernel can be tuned with; each kernel reads what concerns it.
struct Tuning {
  std::size_t slot_bytes = 64 << 10;  // pipeline, cico, sliced: bytes of a chunk.
  int slots = 4;                      // pipeline: slots a rank, 2 * lag + 2.
  std::size_t spacing = 64;           // line: bytes between two ranks' lines.
  std::size_t most_bytes = 64 << 20;  // The largest message.
  int want_lines = 16;     // How far ahead copies ask for the lines they write; 0: memcpy.
  bool demote = false;     // The writer pushes its lines towards the shared cache.
  int prefetch_lines = 0;  // How far ahead sums ask for the lines they read.
  int pages = 2;           // pipeline: pages of the other rank's slot read in turn.
  std::size_t ahead_bytes = 16 << 10;   // Up to this size the next slot is asked for beforehand.
  std::size_t stream_bytes = 24 << 20;  // direct: total bytes from which stores bypass the caches.
};

// An in-place all-reduce (sum of float) with no library around it: the least that it must cost.
// Made before Team::fork(), used by every rank in the same order.
class Kernel {
 public:
  explicit Kernel(Team* team) : team_(*team) {}

  virtual ~Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  virtual void all_reduce(float* buffer, std::size_t count) = 0;

  // The largest message that the kernel takes.
  virtual std::size_t most_bytes() const = 0;

  // The buffer that all_reduce() must be given, or null when any will do.
  virtual float* buffer() { return nullptr; }

 protected:
  Team& team_;
};

// Names: line, lines, slots, pipeline, cico, sliced, cma, direct. Null for any other.
std::unique_ptr<Kernel> make_kernel(std::string_view name, Team* team, const Tuning& tuning);

}  // namespace isthmus::limits
