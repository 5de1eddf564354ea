#include "plugins/nccl/report.h"

#include <atomic>

namespace isthmus::nccl {
namespace {

std::atomic<Reporter>& reporter_slot() {
  static std::atomic<Reporter> slot{nullptr};
  return slot;
}

}  // namespace

void set_reporter(Reporter reporter) {
  reporter_slot().store(reporter, std::memory_order_release);
}

void report(LogLevel level, std::string_view text) {
  const Reporter reporter = reporter_slot().load(std::memory_order_acquire);
  if (reporter != nullptr) {
    reporter(level, std::string(text).c_str());
    return;
  }
  log_line(level, "nccl", text);
}

}  // namespace isthmus::nccl
