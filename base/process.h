#pragma once

#include <cstdint>

namespace isthmus {

enum class ProcessState : std::uint8_t { kRunning, kSleeping, kStopped, kDead, kUnknown };

// What the kernel says of a process of this pid namespace now; kDead when there is none, or only
// its zombie. Advisory: it may change at once, and its number may be taken again. Any thread.
ProcessState process_state(int pid);

}  // namespace isthmus
