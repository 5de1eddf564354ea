#pragma once

#include <string>

#include "plugins/nccl/comm.h"

namespace isthmus::nccl {

// All comms of the process, so that whoever polls in vain drives the others too: a caller that
// waits for one request must not need to test another one first. Any thread.
void registry_add(Comm* comm);

// After this nobody but the owner touches the comm. Waits for a round of another thread that drives
// it just now, at most kRoundBytes.
void registry_remove(Comm* comm);

// Tells that a comm has posts that wait to be written, or no more: counted, see registry_idle().
void registry_unsent(int change);

// To be called when a test found nothing, without a lock: writes what other comms have not written
// yet, at once; drives all others with requests every 64th time, which bounds how long they wait to
// some 20 us of polling and costs the poller one part in 64.
void registry_idle(const Comm* own);

// One line for each comm.
std::string registry_dump();

}  // namespace isthmus::nccl
