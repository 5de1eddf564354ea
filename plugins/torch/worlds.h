#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "collectives/communicator.h"
#include "collectives/world.h"
#include "transport/rendezvous.h"

namespace isthmus::plugin {

// One World of this process. Shared by the groups made from it: it ends with the last of them.
// Thread rule: any thread.
class Membership {
 public:
  // Ends a world: the plug-in must not hold Python's lock while threads are joined.
  using Ender = void (*)(std::unique_ptr<World> world);

  Membership(std::unique_ptr<World> world, Ender ender);
  ~Membership();

  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  World& world() { return *world_; }

  // Ends every operation; later ones fail with `reason`. Idempotent.
  void close(std::string_view reason);

  bool closed() const { return closed_.load(std::memory_order_acquire); }

 private:
  std::unique_ptr<World> world_;
  Ender ender_;
  std::atomic<bool> closed_{false};
};

// Calls of a group come in the same order on every rank; of some calls only an order of their own
// can be told, and these go to a communicator of their own, beside the group's. Which, is a
// property of the thread: its tag, for threads that share a group (0: none), and the communicator
// whose completion callback it runs (null: none).
std::uint32_t thread_tag();
void set_thread_tag(std::uint32_t tag);

// The tag of the thread in which torch saves a checkpoint while training goes on; above those that
// users may give.
inline constexpr std::uint32_t kCheckpointTag = 0x80000000;

// What gives a thread its first tag.
void set_tag_finder(std::uint32_t (*finder)());
const Communicator* thread_callback();

// A Communicator with the world it lives in. Shared by the backend object and its running works:
// the engine must outlive both.
class Group {
 public:
  // communicator() lives in the world, or in `owned`.
  Group(std::shared_ptr<Membership> membership, std::unique_ptr<Communicator> owned)
      : membership_(std::move(membership)),
        owned_(std::move(owned)),
        communicator_(owned_ == nullptr ? membership_->world().communicator() : *owned_) {}

  World& world() { return membership_->world(); }

  // The group itself, whatever the thread's tag.
  Communicator& whole() { return communicator_; }

  // What the calls of this thread go to: the group, or a communicator of the thread's tag and
  // callback, made when a call needs it first.
  Result<Communicator*> current() {
    const bool own = thread_tag() == 0 && thread_callback() == nullptr;
    return own ? Result<Communicator*>(&communicator_) : beside();
  }

  Status run(const Call& call, const CallOptions& options) {
    ISTHMUS_ASSIGN(Communicator* const communicator, current());
    callers_.fetch_add(1, std::memory_order_relaxed);
    Status status = communicator->run(call, options);
    callers_.fetch_sub(1, std::memory_order_relaxed);
    return status;
  }

  void set_timeout_ms(std::int64_t timeout_ms);

  // Ends every operation of the group, in all its communicators.
  void abort(std::string_view reason);

  // Why the group is over, or a communicator beside it; null while all are usable.
  std::shared_ptr<const Error> failure();

  // Keeps an eye on a work until it is done, for leave().
  void watch(const WorkRef& work);

  // The group is destroyed. Whatever runs is ended, and then the peers are told; a group at rest is
  // left silently, since a peer may still be busy with its end of the last operation. The group of
  // all ranks takes the world with it.
  void leave(std::string_view reason);

 private:
  Result<Communicator*> beside();
  std::vector<Communicator*> all();

  std::shared_ptr<Membership> membership_;
  std::unique_ptr<Communicator> owned_;  // null for the group of all ranks
  Communicator& communicator_;
  std::mutex beside_mutex_;
  std::map<std::string, std::unique_ptr<Communicator>> beside_;  // live as long as the group
  std::atomic<int> callers_{0};
  std::mutex watched_mutex_;
  std::vector<std::weak_ptr<Work>> watched_;
};

struct GroupRequest {
  int rank = 0;  // in the group
  int size = 1;
  std::int64_t restart = 0;  // of the launcher
  std::int64_t timeout_ms = -1;
  Priority priority = Priority::kNormal;
  std::string name;
  std::vector<int> world_ranks;  // empty: the group of all ranks
  bool apart = false;            // a world of its own, from which no group is made
};

// A group of all ranks makes a world, and becomes the one that later groups are made from. A group
// of some ranks without such a world (torch's default group is on another backend) makes its own.
Result<std::shared_ptr<Group>> join(const GroupRequest& request, Rendezvous& store,
                                    Membership::Ender ender);

// Closes every world and waits until running completion callbacks have ended, at most `limit_ms`.
// For the process's exit: afterwards no thread of ours needs the interpreter.
void close_all(std::string_view reason, std::int64_t limit_ms);

// True in a child forked after the first join().
bool forked();

// Marks the thread as one that runs a completion callback of a work of `communicator` (null: of no
// use to calls). A world whose last user goes there is ended on a thread of its own: a lane cannot
// be joined by itself.
class CallbackScope {
 public:
  explicit CallbackScope(const Communicator* communicator);
  ~CallbackScope();

  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

 private:
  const Communicator* const outer_callback_;
  const std::uint32_t outer_tag_;
};

// Lives as long as a completion callback is asked for or running; close_all() waits for all.
class PendingCallback {
 public:
  PendingCallback();
  ~PendingCallback();

  PendingCallback(const PendingCallback&) = delete;
  PendingCallback& operator=(const PendingCallback&) = delete;
};

}  // namespace isthmus::plugin
