#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "perf/net_plugin/channel.h"
#include "perf/net_plugin/net_plugin.h"

namespace isthmus::net_plugin {

// A plug-in's call that failed, as an error that says which.
Error failed(const NetPlugin& plugin, const char* call, int result);

// The two one-way comms of a process: to the other one and from it, or to and from itself. Closes
// them. One thread, but for what the plug-in itself allows.
class Link {
 public:
  static constexpr int kJoinLimitMs = 30'000;
  static constexpr int kMessageLimitMs = 60'000;

  // With the process at the other end of the channel, which does the same.
  static Result<Link> with_peer(NetPlugin& plugin, Channel& channel, int device);

  // With itself: connect and accept are called in turn by this thread.
  static Result<Link> with_itself(NetPlugin& plugin, int device);

  Link(Link&& other) noexcept;
  Link& operator=(Link&&) = delete;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  ~Link() { close(); }

  NetPlugin& plugin() const { return *plugin_; }

  void* sender() const { return send_; }

  void* receiver() const { return recv_; }

  // Posted, again until the plug-in takes it: it answers "later" when its queue is full.
  Result<void*> send(void* data, std::size_t bytes, void* region);
  Result<void*> recv(void* data, std::size_t bytes, void* region);

  // One look: whether it is done, and then how many bytes it has.
  Result<bool> done(void* request, int* bytes);

  // Looks until it is done; how many bytes it has.
  Result<int> wait(void* request);

  // The first result that is no success.
  int close();

 private:
  Link(NetPlugin& plugin, int device) : plugin_(&plugin), device_(device) {}

  Status join(void* listening, void* handle);

  NetPlugin* plugin_;
  int device_;
  void* send_ = nullptr;
  void* recv_ = nullptr;
};

// Memory of the machine that both comms of a link know. Freed after it is taken back.
class Registered {
 public:
  static Result<Registered> make(Link& link, std::size_t bytes);

  Registered(Registered&& other) noexcept;
  Registered& operator=(Registered&&) = delete;
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  ~Registered();

  std::byte* data() { return bytes_.data(); }

  void* to_send() const { return to_send_; }

  void* to_recv() const { return to_recv_; }

 private:
  Registered(Link& link, std::size_t bytes) : link_(&link), bytes_(bytes) {}

  Link* link_;
  std::vector<std::byte> bytes_;
  void* to_send_ = nullptr;
  void* to_recv_ = nullptr;
};

}  // namespace isthmus::net_plugin
