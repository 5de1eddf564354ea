#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace isthmus {

// Which processors isthmus's own threads run on: ISTHMUS_CPUS. The mask of a thread that is not
// isthmus's is never changed. All functions: any thread.

// Largest machine that is thought of.
inline constexpr int kCpusMax = 8192;

// "0-3,8" as numbers in rising order; a sentence when it is malformed, empty or beyond kCpusMax.
Result<std::vector<int>> parse_cpus(std::string_view text);

// The way back; "none" for no processor.
std::string cpus_text(std::span<const int> cpus);

// Processors that the calling thread may run on; empty where the system does not say.
std::vector<int> own_cpus();

// Processors that the kernel lets threads of this process have (the container's, where it has its
// own), however narrow the mask of the caller is. Asks on a thread of its own.
Result<std::vector<int>> permitted_cpus();

// Whether ISTHMUS_CPUS is empty, or well-formed and all permitted: to be asked before threads
// start.
Status check_own_cpus(std::string_view cpus);

// First call of every thread that isthmus starts: it runs on ISTHMUS_CPUS only, from now on, and so
// do the threads that it starts. Without the variable it keeps the mask of whoever started it.
void enter_own_thread();

}  // namespace isthmus
