#include "perf/net_plugin/channel.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

namespace isthmus::net_plugin {
namespace {

Status ready(int fd, short events, const Deadline& deadline) {
  pollfd one = {fd, events, 0};
  const int count = ::poll(&one, 1, static_cast<int>(deadline.left_ms(monotonic_ns())));
  if (count > 0 || (count < 0 && errno == EINTR)) {
    return Status();
  }
  if (count < 0) {
    return system_error(Code::kIo, errno, "Waiting for the other process failed");
  }
  return Error{.code = Code::kTimeout,
               .message = fmt::format("The other process did not answer within {} s.",
                                      Channel::kLimitMs / 1000)};
}

Result<Fd> call(const sockaddr_un& address) {
  const Deadline deadline = Deadline::after_ms(Channel::kLimitMs);
  for (;;) {
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.valid()) {
      return system_error(Code::kResource, errno, "A socket could not be made");
    }
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
        0) {
      return socket;
    }
    if ((errno != ENOENT && errno != ECONNREFUSED) || deadline.passed(monotonic_ns())) {
      return system_error(Code::kIo, errno,
                          fmt::format("No rank 0 at the socket {}", address.sun_path));
    }
    ::poll(nullptr, 0, 10);  // rank 0 has not made it yet
  }
}

Result<Fd> answer(const sockaddr_un& address) {
  const Fd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ::unlink(address.sun_path);
  if (!listening.valid() ||
      ::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listening.get(), 1) != 0) {
    return system_error(Code::kIo, errno,
                        fmt::format("The socket {} could not be made", address.sun_path));
  }
  const Status came = ready(listening.get(), POLLIN, Deadline::after_ms(Channel::kLimitMs));
  if (!came.ok()) {
    return came.error();
  }
  Fd socket(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ::unlink(address.sun_path);
  if (!socket.valid()) {
    return system_error(Code::kIo, errno, "The other process could not be answered");
  }
  return socket;
}

}  // namespace

Result<Channel> Channel::meet_at(const std::string& path, int rank) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("The path {} has {} bytes, at most {} are possible.", path,
                                        path.size(), sizeof(address.sun_path) - 1)};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  Result<Fd> socket = rank == 0 ? answer(address) : call(address);
  if (!socket.ok()) {
    return socket.error();
  }
  return Channel(std::move(*socket));
}

Status Channel::write(const void* data, std::size_t bytes) {
  const Deadline deadline = Deadline::after_ms(kLimitMs);
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t wrote = ::send(socket_.get(), at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0 && errno != EAGAIN && errno != EINTR) {
      return system_error(Code::kPeerDead, errno, "The other process is gone");
    }
    if (wrote > 0) {
      at += wrote;
      bytes -= static_cast<std::size_t>(wrote);
      continue;
    }
    Status status = ready(socket_.get(), POLLOUT, deadline);
    if (!status.ok()) {
      return status;
    }
  }
  return Status();
}

Status Channel::read(void* data, std::size_t bytes) {
  const Deadline deadline = Deadline::after_ms(kLimitMs);
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    Status status = ready(socket_.get(), POLLIN, deadline);
    if (!status.ok()) {
      return status;
    }
    const ssize_t got = ::recv(socket_.get(), at, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      return system_error(Code::kPeerDead, got == 0 ? 0 : errno, "The other process is gone");
    }
    if (got > 0) {
      at += got;
      bytes -= static_cast<std::size_t>(got);
    }
  }
  return Status();
}

Status Channel::meet() {
  const Result<char> other = swap('m');
  return other.ok() ? Status() : Status(other.error());
}

}  // namespace isthmus::net_plugin
