#include "perf/common/run.h"

int main(int argc, char** argv) {
  return isthmus::run_perf(isthmus::OpKind::kBroadcast, argc, argv);
}
