#include "base/process.h"

#include <fstream>
#include <string>

#include <fmt/format.h>

namespace isthmus {

ProcessState process_state(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) {
    return ProcessState::kDead;
  }
  // The name in brackets may hold anything; the state is the letter after the last one.
  const std::size_t bracket = line.rfind(')');
  const char state =
      bracket != std::string::npos && bracket + 2 < line.size() ? line[bracket + 2] : '?';
  switch (state) {
    case 'R':
      return ProcessState::kRunning;
    case 'S':
    case 'D':
    case 'I':
      return ProcessState::kSleeping;
    case 'T':
    case 't':
      return ProcessState::kStopped;
    case 'Z':
    case 'X':
      return ProcessState::kDead;
    default:
      return ProcessState::kUnknown;
  }
}

}  // namespace isthmus
