#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "plugins/nccl/frame.h"
#include "plugins/nccl/mailbox.h"
#include "transport/tcp/sockets.h"

namespace isthmus::nccl {

// The one port of the process, and the thread that sleeps at it: reads hellos, drops whoever does
// not know a nonce, answers the others, and leaves connections to the listening comm or, further
// flows, to the comm that they belong to. So a call is answered whether or not anybody is in
// accept(), a stranger that says nothing holds up nobody, and a rail that was lost can be called
// again after the listening comm is closed.
// Lives as long as the process, once started: NCCL lets plug-ins go and takes them again.
// Thread rule: all functions from any thread.
class Listener {
 public:
  using Accepted = std::pair<Arrival, std::shared_ptr<Mailbox>>;

  static Listener& get();

  Listener() = default;

  // Opens the port and starts the thread, once; later calls do nothing.
  Status start(tcp::PortRange range);

  std::uint16_t port() const { return listening_.port; }

  bool ipv6() const { return listening_.ipv6; }

  // A listening comm is known by its nonce from open() to close(). Connections that nobody accepted
  // are dropped by close().
  Result<Nonce> open();
  void close(const Nonce& nonce);

  // The next comm that called, in the order of their calls.
  std::optional<Accepted> next(const Nonce& nonce);

  // Has the thread write registry_dump() into the log: for signal handlers, async-signal-safe.
  void ask_for_dump();

 private:
  struct Stranger {
    Fd fd;
    Hello hello;
    std::size_t got = 0;
    std::int64_t until_ns = 0;
  };

  void run();
  void accept_all(std::int64_t now_ns);
  bool read_hello(Stranger* stranger);
  void admit(Stranger stranger);
  void drop_late(std::int64_t now_ns);
  void dump();

  std::mutex mutex_;  // guards queues_, mailboxes_ and the start
  bool started_ = false;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::deque<Accepted>> queues_;
  std::map<std::uint64_t, std::weak_ptr<Mailbox>> mailboxes_;  // by Hello::comm

  tcp::Listener listening_;  // not changed after the start
  Fd epoll_;
  Fd doorbell_;
  // Of the thread alone.
  std::map<int, Stranger> strangers_;  // by descriptor
  bool told_ = false;                  // that descriptors ran out
  bool paused_ = false;                // out of descriptors: not listening for a moment
};

}  // namespace isthmus::nccl
