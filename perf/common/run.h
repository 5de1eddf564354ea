#pragma once

#include "schedule/schedule.h"

namespace isthmus {

// A perf program's main(): parses the command line, starts ranks or joins the launcher's, measures
// and reports. The exit code: 0, 1 (a wrong result, a failed rank) or 2 (a bad command line).
int run_perf(OpKind op, int argc, const char* const* argv);

}  // namespace isthmus
