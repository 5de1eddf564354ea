#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace isthmus {

// What this process can use of the machine it runs on. Plain values, probed once; nothing here
// decides whether ranks share memory (a mapping that both read does).
struct Machine {
  std::string host_name;
  std::string boot_id;       // of the kernel: equal for processes of one booted machine
  int cores = 1;             // physical cores this process may run on
  int hardware_threads = 1;  // of them, counting SMT siblings
  int numa_nodes = 1;
  std::size_t l2_bytes = 0;  // of one core; 0 unknown
  std::size_t l3_bytes = 0;  // of one core's L3; 0 unknown

  // By hwloc, restricted to this process's cpu mask. Fails with kIo or kUnsupported and a sentence.
  static Result<Machine> probe();

  std::string to_json() const;

  bool operator==(const Machine&) const = default;
};

}  // namespace isthmus
