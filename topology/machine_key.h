#pragma once

#include <cstddef>
#include <string>

namespace isthmus {

// What measured numbers depend on: two machines with equal keys are taken for equally fast. Of the
// whole machine, whatever this process may use of it, and read from a few small files of the
// kernel, so that the start of every job can afford it. What is unknown is 0 or empty. Plain value.
struct MachineKey {
  std::string processor;  // model name
  int processors = 0;     // that are online
  std::size_t l2_bytes = 0;
  std::size_t l3_bytes = 0;

  static MachineKey read();

  // "2 x Intel(R) Xeon(R), L2 2048 KiB, L3 30720 KiB".
  std::string text() const;

  bool operator==(const MachineKey&) const = default;
};

}  // namespace isthmus
