#include "plugins/torch/worlds.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "base/cpus.h"

namespace isthmus::plugin {
namespace {

// How long ranks wait for each other's first key; World::create has its own limit after it.
constexpr std::int64_t kNonceTimeoutMs = 300'000;

// How many works of a group are watched before those that are done are dropped.
constexpr std::size_t kWatchedMin = 64;

// Of a thread that has not asked yet.
constexpr std::uint32_t kTagUnknown = 0xffffffff;

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): of the process, of a thread
std::atomic<bool> in_child{false};
thread_local int callback_depth = 0;
thread_local std::uint32_t tag_of_thread = kTagUnknown;
std::atomic<std::uint32_t (*)()> tag_finder{nullptr};
thread_local const Communicator* callback_of_thread = nullptr;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

// Everything the process shares. Never destroyed: threads may outlive static objects.
struct Shared {
  std::mutex mutex;
  std::vector<std::weak_ptr<Membership>> memberships;
  std::weak_ptr<Membership> whole;  // what later groups are made from
  std::condition_variable idle;
  std::int64_t callbacks = 0;
};

Shared& shared() {
  static Shared& instance = *std::make_unique<Shared>().release();
  return instance;
}

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    ::pthread_atfork(nullptr, nullptr, [] { in_child.store(true, std::memory_order_relaxed); });
  });
}

// Text that all ranks share and no earlier world on this store had. Every rank counts its own
// rounds, so the ranks agree without waiting; rank 0 adds a nonce.
Result<std::string> agree_on_incarnation(const GroupRequest& request, Rendezvous& store) {
  const std::string prefix = fmt::format("isthmus/{}/{}", request.restart, request.name);
  ISTHMUS_ASSIGN(const std::int64_t round,
                 store.add(fmt::format("{}/round/{}", prefix, request.rank), 1));
  const std::string key = fmt::format("{}/nonce/{}", prefix, round);
  if (request.rank == 0) {
    std::random_device random;
    ISTHMUS_TRY(store.set(key, fmt::format("{:08x}{:08x}", random(), random())));
  }
  ISTHMUS_ASSIGN(const std::string nonce, store.get(key, Deadline::after_ms(kNonceTimeoutMs)));
  return fmt::format("{}.{}.{}", request.restart, round, nonce);
}

Result<std::shared_ptr<Membership>> make_world(const GroupRequest& request, Rendezvous& store,
                                               Membership::Ender ender) {
  WorldOptions options;
  options.rank = request.rank;
  options.size = request.size;
  options.timeout_ms = request.timeout_ms;
  ISTHMUS_ASSIGN(options.incarnation, agree_on_incarnation(request, store));
  ISTHMUS_ASSIGN(std::unique_ptr<World> world, World::create(options, store));
  auto membership = std::make_shared<Membership>(std::move(world), ender);
  Shared& all = shared();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.memberships, [](const auto& one) { return one.expired(); });
  all.memberships.push_back(membership);
  return membership;
}

// The world of all ranks, when it is alive and this process has the rank there that is claimed.
std::shared_ptr<Membership> world_for(const GroupRequest& request) {
  Shared& all = shared();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<Membership> membership = all.whole.lock();
  if (membership == nullptr || membership->closed()) {
    return nullptr;
  }
  const std::vector<int>& ranks = request.world_ranks;
  const auto own = static_cast<std::size_t>(request.rank);
  const bool inside = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return rank >= 0 && rank < membership->world().size();
  });
  const bool ours = own < ranks.size() && ranks[own] == membership->world().rank();
  return inside && ours ? membership : nullptr;
}

}  // namespace

Membership::Membership(std::unique_ptr<World> world, Ender ender)
    : world_(std::move(world)), ender_(ender) {}

Membership::~Membership() {
  if (forked()) {
    // The threads and locks of the world are the parent's: there is nothing to end here.
    [[maybe_unused]] const World* const of_parent = world_.release();
    return;
  }
  if (callback_depth == 0) {
    ender_(std::move(world_));
    return;
  }
  std::thread([world = std::move(world_), ender = ender_]() mutable {
    enter_own_thread();
    const PendingCallback pending;  // the process's exit waits for this thread
    ender(std::move(world));
  }).detach();
}

void Membership::close(std::string_view reason) {
  if (!closed_.exchange(true, std::memory_order_acq_rel) && !forked()) {
    world_->shutdown(reason);
  }
}

Result<std::shared_ptr<Group>> join(const GroupRequest& request, Rendezvous& store,
                                    Membership::Ender ender) {
  if (forked()) {
    return Error{.code = Code::kUnsupported,
                 .message =
                     "isthmus cannot be used in this process: it was forked from one that "
                     "uses isthmus. Start workers that communicate with the spawn method."};
  }
  watch_forks();
  if (!request.world_ranks.empty()) {
    if (std::shared_ptr<Membership> membership = world_for(request)) {
      ISTHMUS_ASSIGN(
          std::unique_ptr<Communicator> owned,
          membership->world().new_group(request.world_ranks, request.name, request.timeout_ms));
      return std::make_shared<Group>(std::move(membership), std::move(owned));
    }
  }
  ISTHMUS_ASSIGN(std::shared_ptr<Membership> membership, make_world(request, store, ender));
  if (request.world_ranks.empty() && !request.apart) {
    Shared& all = shared();
    const std::lock_guard lock(all.mutex);
    all.whole = membership;
  }
  return std::make_shared<Group>(std::move(membership), nullptr);
}

std::uint32_t thread_tag() {
  if (tag_of_thread == kTagUnknown) [[unlikely]] {
    const auto finder = tag_finder.load(std::memory_order_relaxed);
    tag_of_thread = finder == nullptr ? 0 : finder();
  }
  return tag_of_thread;
}

void set_tag_finder(std::uint32_t (*finder)()) {
  tag_finder.store(finder, std::memory_order_relaxed);
}

void set_thread_tag(std::uint32_t tag) {
  tag_of_thread = tag;
}

const Communicator* thread_callback() {
  return callback_of_thread;
}

// Ranks make it without waiting for each other: the name tells whose it is.
Result<Communicator*> Group::beside() {
  std::string name(communicator_.name());
  if (callback_of_thread != nullptr) {
    name += fmt::format(" in callbacks of {}", callback_of_thread->name());
  }
  const std::uint32_t tag = thread_tag();
  if (tag == kCheckpointTag) {
    name += " of asynchronous checkpoints";
  } else if (tag != 0) {
    name += fmt::format(" tag {}", tag);
  }
  const std::lock_guard lock(beside_mutex_);
  std::unique_ptr<Communicator>& communicator = beside_[name];
  if (communicator == nullptr) {
    ISTHMUS_ASSIGN(communicator, membership_->world().new_group(communicator_.world_ranks(), name,
                                                                communicator_.timeout_ms()));
  }
  return communicator.get();
}

std::vector<Communicator*> Group::all() {
  std::vector<Communicator*> found = {&communicator_};
  const std::lock_guard lock(beside_mutex_);
  for (const auto& [name, communicator] : beside_) {
    if (communicator != nullptr) {
      found.push_back(communicator.get());
    }
  }
  return found;
}

void Group::set_timeout_ms(std::int64_t timeout_ms) {
  for (Communicator* communicator : all()) {
    communicator->set_timeout_ms(timeout_ms);
  }
}

void Group::abort(std::string_view reason) {
  for (Communicator* communicator : all()) {
    communicator->abort(reason);
  }
}

std::shared_ptr<const Error> Group::failure() {
  for (Communicator* communicator : all()) {
    if (std::shared_ptr<const Error> failure = communicator->failure()) {
      return failure;
    }
  }
  return nullptr;
}

void Group::watch(const WorkRef& work) {
  const std::lock_guard lock(watched_mutex_);
  if (watched_.size() >= kWatchedMin && watched_.size() == watched_.capacity()) {
    std::erase_if(watched_, [](const std::weak_ptr<Work>& one) {
      const WorkRef watched = one.lock();
      return watched == nullptr || watched->done();
    });
  }
  watched_.push_back(work);
}

void Group::leave(std::string_view reason) {
  if (owned_ == nullptr) {
    membership_->close(reason);
    return;
  }
  bool busy = callers_.load(std::memory_order_relaxed) != 0;
  {
    const std::lock_guard lock(watched_mutex_);
    for (const std::weak_ptr<Work>& one : watched_) {
      const WorkRef work = one.lock();
      busy = busy || (work != nullptr && !work->done());
    }
  }
  if (busy && !membership_->closed() && !forked()) {
    abort(reason);
  }
}

void close_all(std::string_view reason, std::int64_t limit_ms) {
  if (forked()) {
    return;
  }
  Shared& all = shared();
  std::vector<std::shared_ptr<Membership>> alive;
  {
    const std::lock_guard lock(all.mutex);
    for (const std::weak_ptr<Membership>& one : all.memberships) {
      if (std::shared_ptr<Membership> membership = one.lock()) {
        alive.push_back(std::move(membership));
      }
    }
  }
  for (const std::shared_ptr<Membership>& membership : alive) {
    membership->close(reason);
  }
  std::unique_lock lock(all.mutex);
  all.idle.wait_for(lock, std::chrono::milliseconds(limit_ms), [&] { return all.callbacks == 0; });
}

bool forked() {
  return in_child.load(std::memory_order_relaxed);
}

// The thread's own tag is no part of the callback: another rank may run it on another thread.
CallbackScope::CallbackScope(const Communicator* communicator)
    : outer_callback_(callback_of_thread), outer_tag_(tag_of_thread) {
  ++callback_depth;
  callback_of_thread = communicator;
  tag_of_thread = 0;
}

CallbackScope::~CallbackScope() {
  tag_of_thread = outer_tag_;
  callback_of_thread = outer_callback_;
  --callback_depth;
}

PendingCallback::PendingCallback() {
  if (forked()) {
    return;
  }
  const std::lock_guard lock(shared().mutex);
  ++shared().callbacks;
}

PendingCallback::~PendingCallback() {
  if (forked()) {
    return;
  }
  const std::lock_guard lock(shared().mutex);
  if (--shared().callbacks == 0) {
    shared().idle.notify_all();
  }
}

}  // namespace isthmus::plugin
