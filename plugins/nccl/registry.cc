#include "plugins/nccl/registry.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.h"

namespace isthmus::nccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<Comm*> comms;
  std::atomic<int> unsent{0};
};

// Never destroyed: threads may poll while the process exits.
Registry& registry() {
  static Registry& all = *std::make_unique<Registry>().release();
  return all;
}

constexpr unsigned kOthersEvery = 64;

void drive_others(const Comm* own, bool unsent_only) {
  Registry& all = registry();
  const std::unique_lock<std::mutex> lock(all.mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    return;
  }
  for (Comm* comm : all.comms) {
    if (comm == own || !(unsent_only ? comm->unsent() : comm->waiting())) {
      continue;
    }
    const std::unique_lock<std::mutex> theirs(comm->mutex(), std::try_to_lock);
    if (theirs.owns_lock() && comm->failure() == nullptr) {
      comm->progress();
    }
  }
}

}  // namespace

void registry_add(Comm* comm) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().comms.push_back(comm);
}

void registry_remove(Comm* comm) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  std::erase(registry().comms, comm);
  if (comm->unsent()) {
    registry_unsent(-1);
  }
}

void registry_unsent(int change) {
  registry().unsent.fetch_add(change, std::memory_order_relaxed);
}

void registry_idle(const Comm* own) {
  static thread_local unsigned polls = 0;
  if (++polls % kOthersEvery == 0) {
    drive_others(own, false);
  } else if (registry().unsent.load(std::memory_order_relaxed) > 0) {
    drive_others(own, true);
  }
}

std::string registry_dump() {
  std::string out;
  const std::int64_t now_ns = monotonic_ns();
  const std::lock_guard<std::mutex> lock(registry().mutex);
  for (Comm* comm : registry().comms) {
    const std::unique_lock<std::mutex> theirs(comm->mutex(), std::try_to_lock);
    out += theirs.owns_lock() ? comm->describe(now_ns) : "a comm that is in a system call just now";
    out += '\n';
  }
  return out;
}

}  // namespace isthmus::nccl
