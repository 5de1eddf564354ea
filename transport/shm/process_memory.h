#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace isthmus {

// Copies [address, address + bytes) of process `pid` to `into` (process_vm_readv). One system call
// moves at most 2 GiB and may stop short: this goes on until all is there. Fails with kPeerDead
// when there is no such process, with kUnsupported when the system does not allow it, else with
// kIo. `rank` is for the text. Any thread.
Status read_process(int pid, const void* address, std::byte* into, std::size_t bytes, int rank);

}  // namespace isthmus
