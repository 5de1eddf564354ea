#include "perf/net_plugin/link.h"

#include <array>
#include <utility>

#include <fmt/format.h>

namespace isthmus::net_plugin {
namespace {

// A pointer that no plug-in makes: it must not be there after a call.
void* poison() {
  static char place = 0;
  return &place;
}

}  // namespace

Error failed(const NetPlugin& plugin, const char* call, int result) {
  return {.code = Code::kIo,
          .message = fmt::format("{} of {} (v{}) answered {}: {}.", call, plugin.name(),
                                 plugin.version(), result, result_name(result))};
}

Result<Link> Link::with_peer(NetPlugin& plugin, Channel& channel, int device) {
  std::array<std::byte, kHandleBytes> mine{};
  void* listening = nullptr;
  const int result = plugin.listen(device, mine.data(), &listening);
  if (result != 0 || listening == nullptr) {
    return failed(plugin, "listen", result);
  }
  Result<std::array<std::byte, kHandleBytes>> theirs = channel.swap(mine);
  Link link(plugin, device);
  const Status joined = theirs.ok() ? link.join(listening, theirs->data()) : Status(theirs.error());
  plugin.close_listen(listening);
  if (!joined.ok()) {
    return joined.error();
  }
  return link;
}

Result<Link> Link::with_itself(NetPlugin& plugin, int device) {
  std::array<std::byte, kHandleBytes> handle{};
  void* listening = nullptr;
  const int result = plugin.listen(device, handle.data(), &listening);
  if (result != 0 || listening == nullptr) {
    return failed(plugin, "listen", result);
  }
  Link link(plugin, device);
  const Status joined = link.join(listening, handle.data());
  plugin.close_listen(listening);
  if (!joined.ok()) {
    return joined.error();
  }
  return link;
}

Link::Link(Link&& other) noexcept
    : plugin_(other.plugin_),
      device_(other.device_),
      send_(std::exchange(other.send_, nullptr)),
      recv_(std::exchange(other.recv_, nullptr)) {}

Status Link::join(void* listening, void* handle) {
  const Deadline deadline = Deadline::after_ms(kJoinLimitMs);
  while (send_ == nullptr || recv_ == nullptr) {
    if (send_ == nullptr) {
      send_ = poison();
      const int result = plugin_->connect(device_, handle, &send_);
      if (result != 0 || send_ == poison()) {
        send_ = nullptr;
        return failed(*plugin_, "connect", result);
      }
    }
    if (recv_ == nullptr) {
      recv_ = poison();
      const int result = plugin_->accept(listening, &recv_);
      if (result != 0 || recv_ == poison()) {
        recv_ = nullptr;
        return failed(*plugin_, "accept", result);
      }
    }
    if (deadline.passed(monotonic_ns())) {
      return Error{.code = Code::kTimeout,
                   .message = fmt::format("{} made no connection within {} s: {} is missing.",
                                          plugin_->name(), kJoinLimitMs / 1000,
                                          send_ == nullptr ? "connect" : "accept")};
    }
  }
  return Status();
}

Result<void*> Link::send(void* data, std::size_t bytes, void* region) {
  void* request = poison();
  const int result = plugin_->send(send_, data, bytes, 0, region, &request);
  if (result != 0 || request == poison()) {
    return failed(*plugin_, "isend", result);
  }
  return request;
}

Result<void*> Link::recv(void* data, std::size_t bytes, void* region) {
  void* request = poison();
  const int result = plugin_->recv(recv_, data, bytes, 0, region, &request);
  if (result != 0 || request == poison()) {
    return failed(*plugin_, "irecv", result);
  }
  return request;
}

Result<bool> Link::done(void* request, int* bytes) {
  int done = -1;
  const int result = plugin_->test(request, &done, bytes);
  if (result != 0 || done == -1) {
    return failed(*plugin_, "test", result);
  }
  return done != 0;
}

Result<int> Link::wait(void* request) {
  const Deadline deadline = Deadline::after_ms(kMessageLimitMs);
  int bytes = -1;
  for (unsigned looks = 0;; ++looks) {
    const Result<bool> over = done(request, &bytes);
    if (!over.ok()) {
      return over.error();
    }
    if (*over) {
      return bytes;
    }
    if (looks % 1024 == 1023 && deadline.passed(monotonic_ns())) {
      return Error{.code = Code::kTimeout,
                   .message = fmt::format("A message of {} did not end within {} s.",
                                          plugin_->name(), kMessageLimitMs / 1000)};
    }
  }
}

int Link::close() {
  int first = 0;
  if (send_ != nullptr) {
    first = plugin_->close_send(std::exchange(send_, nullptr));
  }
  if (recv_ != nullptr) {
    const int result = plugin_->close_recv(std::exchange(recv_, nullptr));
    first = first == 0 ? result : first;
  }
  return first;
}

Result<Registered> Registered::make(Link& link, std::size_t bytes) {
  Registered out(link, bytes);
  NetPlugin& plugin = link.plugin();
  int result = plugin.reg(link.sender(), out.data(), bytes, kPointerHost, &out.to_send_);
  if (result == 0) {
    result = plugin.reg(link.receiver(), out.data(), bytes, kPointerHost, &out.to_recv_);
  }
  if (result != 0) {
    return failed(plugin, "regMr", result);
  }
  return out;
}

Registered::Registered(Registered&& other) noexcept
    : link_(std::exchange(other.link_, nullptr)),
      bytes_(std::move(other.bytes_)),
      to_send_(other.to_send_),
      to_recv_(other.to_recv_) {}

Registered::~Registered() {
  if (link_ != nullptr && link_->sender() != nullptr) {
    link_->plugin().dereg(link_->sender(), to_send_);
    link_->plugin().dereg(link_->receiver(), to_recv_);
  }
}

}  // namespace isthmus::net_plugin
