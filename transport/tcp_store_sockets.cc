#include "transport/tcp_store_sockets.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace isthmus::store {
namespace {

// Connections that wait to be accepted: a whole job may come at once. The kernel caps it.
constexpr int kBacklog = 8192;

// One address gets this long before the next is tried: a black hole must not eat the deadline.
constexpr std::int64_t kAttemptMs = 3000;

constexpr std::int64_t kPauseMinMs = 5;
constexpr std::int64_t kPauseMaxMs = 500;

struct FreeAddresses {
  void operator()(addrinfo* info) const { ::freeaddrinfo(info); }
};

using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port_text = fmt::format("{}", port);
  const int failure = ::getaddrinfo(host.c_str(), port_text.c_str(), &hints, &found);
  if (failure != 0) {
    return Error{.code = Code::kIo,
                 .sys_errno = failure == EAI_SYSTEM ? errno : 0,
                 .message = fmt::format(
                     "cannot resolve host '{}': {}", host,
                     failure == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(failure))};
  }
  return Addresses(found);
}

struct Place {
  const char* address;
  bool needed;  // false: skipped where the machine lacks the address family
};

// A name may stand for another address on another machine (127.0.1.1 for its own host name is
// common), so only a literal loopback narrows what is listened on.
std::vector<Place> places_for(const std::string& host) {
  if (host == "localhost") {
    return {{"127.0.0.1", true}, {"::1", false}};
  }
  if (host == "::1") {
    return {{"::1", true}};
  }
  in_addr parsed = {};
  if (::inet_pton(AF_INET, host.c_str(), &parsed) == 1 && (ntohl(parsed.s_addr) >> 24) == 127) {
    return {{"127.0.0.1", true}};
  }
  return {{"::", true}};
}

Result<Fd> listen_on(const char* address, std::uint16_t port) {
  ISTHMUS_ASSIGN(const Addresses addresses, resolve(address, port, AI_NUMERICHOST | AI_PASSIVE));
  const int family = addresses->ai_family;
  const auto fail = [&](const char* call) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return system_error(
          Code::kResource, error,
          fmt::format("cannot serve the rendezvous on port {}: the port is in use by "
                      "another program; choose another (MASTER_PORT)",
                      port));
    }
    return system_error(
        error == EAFNOSUPPORT || error == EADDRNOTAVAIL ? Code::kUnsupported : Code::kIo, error,
        fmt::format("cannot serve the rendezvous on {}: {} failed", endpoint_text(address, port),
                    call));
  };
  Fd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return fail("socket");
  }
  const int on = 1;
  const int only6 = std::strcmp(address, "::") == 0 ? 0 : 1;
  // A port whose last connections are in TIME_WAIT is free; one that is listened on is not.
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      (family == AF_INET6 &&
       ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only6, sizeof only6) != 0)) {
    return fail("setsockopt");
  }
  if (::bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0) {
    return fail("bind");
  }
  if (::listen(fd.get(), kBacklog) != 0) {
    return fail("listen");
  }
  return fd;
}

Result<std::uint16_t> local_port(const Fd& fd) {
  sockaddr_storage name = {};
  socklen_t bytes = sizeof name;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &bytes) != 0) {
    return system_error(Code::kIo, errno, "cannot tell the rendezvous server's port");
  }
  const in_port_t port = name.ss_family == AF_INET6
                             ? reinterpret_cast<const sockaddr_in6*>(&name)->sin6_port
                             : reinterpret_cast<const sockaddr_in*>(&name)->sin_port;
  return std::uint16_t{ntohs(port)};
}

// Both ends the same: a connect to an ephemeral local port that nobody listens on can meet itself.
bool met_itself(const Fd& fd) {
  sockaddr_storage local = {};
  sockaddr_storage remote = {};
  socklen_t local_bytes = sizeof local;
  socklen_t remote_bytes = sizeof remote;
  return ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &local_bytes) == 0 &&
         ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&remote), &remote_bytes) == 0 &&
         local_bytes == remote_bytes && std::memcmp(&local, &remote, local_bytes) == 0;
}

// One attempt at one address; 0 or the errno.
int attempt(const addrinfo& address, Deadline deadline, Fd* out) {
  Fd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return errno;
  }
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) {
      return errno;
    }
    const Result<bool> ready = wait_for(fd, POLLOUT, deadline);
    if (!ready.ok()) {
      return ready.error().sys_errno;
    }
    if (!*ready) {
      return ETIMEDOUT;
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) {
      return errno;
    }
    if (error != 0) {
      return error;
    }
  }
  if (met_itself(fd)) {
    return ECONNREFUSED;
  }
  const int on = 1;
  // Both only help: without them a request waits longer, a dead machine is noticed later.
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  *out = std::move(fd);
  return 0;
}

}  // namespace

std::string endpoint_text(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Result<bool> wait_for(const Fd& fd, short events, Deadline deadline) {
  for (;;) {
    const std::int64_t left_ms = deadline.left_ms(monotonic_ns());
    pollfd polled = {fd.get(), events, 0};
    // One more millisecond than is left: "0 left" must not turn the last one into a spin.
    const int ready = ::poll(
        &polled, 1,
        static_cast<int>(std::min<std::int64_t>(left_ms + 1, std::numeric_limits<int>::max())));
    if (ready > 0) {
      return true;
    }
    if (ready < 0 && errno != EINTR) {
      return system_error(Code::kIo, errno, "cannot wait for the rendezvous server");
    }
    if (deadline.passed(monotonic_ns())) {
      return false;
    }
  }
}

Result<std::vector<Fd>> listen_for(const std::string& host, std::uint16_t* port) {
  std::vector<Fd> listeners;
  for (const Place& place : places_for(host)) {
    Result<Fd> fd = listen_on(place.address, *port);
    if (!fd.ok() && fd.error().code == Code::kUnsupported &&
        std::strcmp(place.address, "::") == 0) {
      fd = listen_on("0.0.0.0", *port);
    }
    if (!fd.ok() && !place.needed && fd.error().code == Code::kUnsupported) {
      continue;
    }
    if (!fd.ok()) {
      return fd.error();
    }
    ISTHMUS_ASSIGN(*port, local_port(*fd));
    listeners.push_back(std::move(*fd));
  }
  return listeners;
}

Result<Fd> connect_to(const std::string& host, std::uint16_t port, Deadline deadline) {
  const std::int64_t begin_ns = monotonic_ns();
  std::int64_t pause_ms = kPauseMinMs;
  Error last;
  for (;;) {
    Result<Addresses> addresses = resolve(host, port, 0);
    if (!addresses.ok()) {
      last = addresses.error();
    } else {
      for (const addrinfo* each = addresses->get(); each != nullptr; each = each->ai_next) {
        const Deadline soon = Deadline::after_ms(kAttemptMs);
        Fd fd;
        const int error = attempt(*each, soon.at_ns() < deadline.at_ns() ? soon : deadline, &fd);
        if (error == 0) {
          return fd;
        }
        last = system_error(Code::kIo, error, "connect failed");
      }
    }
    const std::int64_t now_ns = monotonic_ns();
    if (deadline.passed(now_ns)) {
      return Error{.code = Code::kTimeout,
                   .sys_errno = last.sys_errno,
                   .message = fmt::format(
                       "cannot reach the rendezvous store at {} within {} ms; is "
                       "rank 0 running, and are host and port right? {}",
                       endpoint_text(host, port), (now_ns - begin_ns) / 1'000'000, last.message)};
    }
    // Signals may end the pause early, which does no harm.
    ::poll(nullptr, 0, static_cast<int>(std::min(pause_ms, deadline.left_ms(now_ns) + 1)));
    pause_ms = std::min(2 * pause_ms, kPauseMaxMs);
  }
}

}  // namespace isthmus::store
