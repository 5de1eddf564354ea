#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.h"

namespace isthmus::nccl {

class Comm;

// Requests of one comm that may be under way at once; NCCL asks for 32.
inline constexpr std::uint32_t kRequestsMax = 64;

// One isend or irecv, at the caller's as an opaque pointer from its post until test() said done.
// Lives in its comm; guarded by the comm's mutex.
struct Request {
  Comm* comm = nullptr;
  bool used = false;
  bool done = false;
  std::uint32_t message = 0;  // its number in the comm
  std::uint64_t bytes = 0;    // sent or received, true when done
};

// One direction of a connection: a SendComm or a RecvComm.
// Thread rule: everything is guarded by mutex() but the atomics. NCCL calls from one thread; the
// lock is for progress on behalf of others (registry.h), for the dump and for callers that differ.
class Comm {
 public:
  Comm() = default;
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  Comm(Comm&&) = delete;
  Comm& operator=(Comm&&) = delete;

  std::mutex& mutex() { return mutex_; }

  // One round of reading and writing, without blocking; at most kRoundBytes. The lock is held.
  virtual void progress() = 0;

  // One line for the dump: who waits for whom. The lock is held.
  virtual std::string describe(std::int64_t now_ns) const = 0;

  // The failure that ended this comm, or nullptr. The lock is held.
  const Error* failure() const { return failure_ ? &*failure_ : nullptr; }

  // Whether posts wait that no system call has seen yet, and whether any request is not done.
  // Written with the lock held, read by anybody.
  bool unsent() const { return unsent_.load(std::memory_order_relaxed); }

  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }

  // Gives a finished request back. The lock is held.
  void release(Request* request) {
    request->used = false;
    --outstanding_;
  }

 protected:
  void set_unsent(bool unsent);

  void set_waiting(bool waiting) { waiting_.store(waiting, std::memory_order_relaxed); }

  // The first failure counts, and is reported at once.
  void fail(Error error);

  std::uint32_t outstanding_ = 0;  // requests that the caller has not seen done
  std::int64_t moved_ns_ = 0;      // when bytes moved last, to a few milliseconds

 private:
  std::mutex mutex_;
  std::optional<Error> failure_;
  std::atomic<bool> unsent_{false};
  std::atomic<bool> waiting_{false};
};

// Bytes that one round moves at most, so that one comm does not keep the others from the thread.
inline constexpr std::size_t kRoundBytes = 8 << 20;

}  // namespace isthmus::nccl
