#include "plugins/nccl/comm.h"

#include "plugins/nccl/registry.h"
#include "plugins/nccl/report.h"

namespace isthmus::nccl {

void Comm::set_unsent(bool unsent) {
  if (unsent_.load(std::memory_order_relaxed) != unsent) {
    unsent_.store(unsent, std::memory_order_relaxed);
    registry_unsent(unsent ? 1 : -1);
  }
}

void Comm::fail(Error error) {
  if (!failure_) {
    report(LogLevel::kWarn, error.message);
    failure_ = std::move(error);
  }
}

}  // namespace isthmus::nccl
