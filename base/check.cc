#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace isthmus {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "isthmus: internal error at %s:%d: %s (%s)\n", file, line, message,
               condition);
  std::abort();
}

}  // namespace isthmus
