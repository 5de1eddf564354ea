#include "transport/memory_store.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

namespace isthmus {
namespace {

// A wait looks at its deadline at least this often; also keeps "never" out of chrono's arithmetic.
constexpr std::int64_t kSliceMs = 1000;

Error mixed(std::string_view key, bool counter) {
  return Error{
      .code = Code::kInvalidArgument,
      .message = fmt::format("key '{}' of the in-process rendezvous is a {}: {} refused", key,
                             counter ? "counter" : "value", counter ? "set() is" : "add() is")};
}

}  // namespace

Status MemoryStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(key);
  if (it != entries_.end() && it->second.counter) {
    return mixed(key, true);
  }
  entries_[std::string(key)].value = value;
  changed_.notify_all();
  return {};
}

Result<std::string> MemoryStore::get(std::string_view key, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::int64_t begin_ns = monotonic_ns();
  for (;;) {
    const auto it = entries_.find(key);
    if (it != entries_.end()) {
      return it->second.counter ? fmt::format("{}", it->second.sum) : it->second.value;
    }
    const std::int64_t now_ns = monotonic_ns();
    if (deadline.passed(now_ns)) {
      return Error{.code = Code::kTimeout,
                   .message = fmt::format("nobody set key '{}' of the in-process rendezvous within "
                                          "{} ms",
                                          key, (now_ns - begin_ns) / 1'000'000)};
    }
    // A millisecond more than is left: the last wait ends behind the deadline, not before it.
    changed_.wait_for(lock,
                      std::chrono::milliseconds(std::min(kSliceMs, deadline.left_ms(now_ns) + 1)));
  }
}

Result<std::int64_t> MemoryStore::add(std::string_view key, std::int64_t amount) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, added] = entries_.try_emplace(std::string(key));
  if (added) {
    it->second.counter = true;
  } else if (!it->second.counter) {
    return mixed(key, false);
  }
  it->second.sum += amount;
  changed_.notify_all();
  return it->second.sum;
}

}  // namespace isthmus
