#include "transport/tcp/sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/log.h"

namespace isthmus::tcp {
namespace {

// An idle connection's peer is asked after 5 s and given up 3 unanswered questions later: 20 s.
constexpr int kKeepAliveIdleS = 5;
constexpr int kKeepAliveIntervalS = 5;
constexpr int kKeepAliveProbes = 3;
// Retransmissions in a row, without any answer, after which a machine counts as gone: 13 s on a
// network whose retransmission time-out is the least (200 ms), more on a slower one.
constexpr unsigned kRetransmitsMax = 6;
constexpr unsigned kSilentMs = 10'000;
// See stalled().
constexpr unsigned kStalledMs = 300;
// Unanswered questions whether a closed receive window has opened.
constexpr unsigned kProbesMax = 4;
// Connections waiting to be accepted; the kernel caps it at net.core.somaxconn.
constexpr int kBacklog = 4096;

bool set_int(const Fd& fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd.get(), level, option, &value, sizeof(value)) == 0) {
    return true;
  }
  log(LogLevel::kDebug, "tcp", "cannot set {} to {}: {}", name, value, std::strerror(errno));
  return false;
}

Result<Fd> open_socket(int family) {
  const int raw = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (raw < 0) {
    return system_error(errno == EMFILE || errno == ENFILE ? Code::kResource : Code::kIo, errno,
                        "Cannot open a TCP socket");
  }
  return Fd(raw);
}

Status bind_and_listen(const Fd& fd, const SocketAddress& any) {
  // A chosen port must not stay closed for the minute in which connections of an earlier job end.
  // Of two that listen the second still fails.
  set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  const auto* address = reinterpret_cast<const sockaddr*>(&any.storage);
  if (::bind(fd.get(), address, any.bytes) != 0) {
    return system_error(Code::kIo, errno, "Cannot bind a TCP socket to " + to_string(any));
  }
  if (::listen(fd.get(), kBacklog) != 0) {
    return system_error(Code::kIo, errno, "Cannot listen on " + to_string(any));
  }
  return {};
}

Result<std::uint16_t> bound_port(const Fd& fd) {
  SocketAddress bound;
  bound.bytes = sizeof(bound.storage);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.bytes) != 0) {
    return system_error(Code::kIo, errno, "Cannot read the port of the TCP listener");
  }
  std::uint16_t port = 0;  // sin_port and sin6_port lie at the same place
  std::memcpy(&port, reinterpret_cast<const char*>(&bound.storage) + 2, 2);
  return ntohs(port);
}

// bbr, the default on some hosts, halves the rate of loopback and of short paths. An unprivileged
// process may choose only among net.ipv4.tcp_allowed_congestion_control.
void ask_for_congestion_control(const Fd& fd) {
  for (const char* name : {"cubic", "reno"}) {
    if (::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name,
                     static_cast<socklen_t>(std::strlen(name))) == 0) {
      return;
    }
  }
}

Result<Listener> listen_at(std::uint16_t port) {
  Listener out;
  Candidate any;
  any.family = 6;
  any.port = port;
  Result<Fd> six = open_socket(AF_INET6);
  if (six.ok() && set_int(*six, IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY")) {
    const Status listening = bind_and_listen(*six, socket_address(any));
    if (!listening.ok() && listening.error().sys_errno == EADDRINUSE) {
      return listening.error();
    }
    out.ipv6 = listening.ok();
  }
  if (out.ipv6) {
    out.fd = std::move(*six);
  } else {
    any.family = 4;
    ISTHMUS_ASSIGN(out.fd, open_socket(AF_INET));
    ISTHMUS_TRY(bind_and_listen(out.fd, socket_address(any)));
  }
  ISTHMUS_ASSIGN(out.port, bound_port(out.fd));
  return out;
}

}  // namespace

Result<PortRange> PortRange::parse(std::string_view text) {
  PortRange out;
  if (text.empty()) {
    return out;
  }
  const std::size_t dash = std::min(text.find('-'), text.size());
  const auto read = [](std::string_view digits, std::uint16_t* port) {
    const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), *port);
    return failed == std::errc() && end == digits.data() + digits.size() && *port > 0;
  };
  const bool fine = dash < text.size() && read(text.substr(0, dash), &out.first) &&
                    read(text.substr(dash + 1), &out.last) && out.first <= out.last;
  if (!fine) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("ISTHMUS_PORT_RANGE is '{}', expected two ports from 1 to "
                                        "65535, the smaller first, as in 20000-20100.",
                                        text)};
  }
  return out;
}

Result<Listener> open_listener(PortRange range, unsigned seed) {
  if (range.first == 0) {
    return listen_at(0);
  }
  const unsigned count = 1U + range.last - range.first;
  for (unsigned i = 0; i < count; ++i) {
    const auto port = static_cast<std::uint16_t>(range.first + (seed + i) % count);
    Result<Listener> listener = listen_at(port);
    // A port that this user may not have is as good as a busy one.
    const bool taken = !listener.ok() && (listener.error().sys_errno == EADDRINUSE ||
                                          listener.error().sys_errno == EACCES);
    if (!taken) {
      return listener;
    }
  }
  return Error{.code = Code::kResource,
               .message = fmt::format("None of the {} ports of ISTHMUS_PORT_RANGE={}-{} is free; "
                                      "each rank of a node needs one. Enlarge the range.",
                                      count, range.first, range.last)};
}

void raise_descriptor_limit(std::size_t needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
    return;
  }
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, needed);
  const bool raised = limit.rlim_cur > before && ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  const bool enough = raised && limit.rlim_cur >= needed;
  log(enough ? LogLevel::kDebug : LogLevel::kInfo, "tcp",
      "limit of open descriptors: {} before, {} now, {} for connections to all ranks", before,
      raised ? limit.rlim_cur : before, needed);
}

Result<Fd> accept_one(const Fd& listener) {
  const int raw = ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (raw >= 0) {
    return Fd(raw);
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return system_error(Code::kResource, errno, "Cannot accept a TCP connection");
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
      return system_error(Code::kIo, errno, "Cannot accept a TCP connection");
    default:  // EAGAIN, or a connection that failed before it was accepted
      return Fd();
  }
}

Result<Fd> start_connect(const Candidate& candidate, const Candidate* from) {
  ISTHMUS_ASSIGN(Fd fd, open_socket(candidate.family == 4 ? AF_INET : AF_INET6));
  if (from != nullptr) {
    Candidate source = *from;
    source.port = 0;
    const SocketAddress near = socket_address(source);
    set_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, "IP_BIND_ADDRESS_NO_PORT");
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&near.storage), near.bytes) != 0) {
      return system_error(Code::kIo, errno, "Cannot call from " + to_string(near));
    }
  }
  const SocketAddress to = socket_address(candidate);
  const auto* address = reinterpret_cast<const sockaddr*>(&to.storage);
  if (::connect(fd.get(), address, to.bytes) != 0 && errno != EINPROGRESS) {
    return system_error(Code::kIo, errno, "Cannot connect to " + to_string(to));
  }
  return fd;
}

int finish_connect(const Fd& fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) {
    return errno;
  }
  if (error != 0) {
    return error;
  }
  SocketAddress near;
  SocketAddress far;
  near.bytes = sizeof(near.storage);
  far.bytes = sizeof(far.storage);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&near.storage), &near.bytes) != 0 ||
      ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&far.storage), &far.bytes) != 0) {
    return errno;
  }
  const bool itself =
      near.bytes == far.bytes && std::memcmp(&near.storage, &far.storage, near.bytes) == 0;
  return itself ? ECONNREFUSED : 0;
}

void tune_connection(const Fd& fd) {
  set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS, "TCP_KEEPIDLE");
  set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalS, "TCP_KEEPINTVL");
  set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes, "TCP_KEEPCNT");
  ask_for_congestion_control(fd);
}

void limit_unsent(const Fd& fd, int bytes) {
  set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes, "TCP_NOTSENT_LOWAT");
}

std::optional<Ends> ends_of(const Fd& fd) {
  SocketAddress near;
  SocketAddress far;
  near.bytes = sizeof(near.storage);
  far.bytes = sizeof(far.storage);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&near.storage), &near.bytes) != 0 ||
      ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&far.storage), &far.bytes) != 0) {
    return std::nullopt;
  }
  return Ends{ip_of(near), ip_of(far)};
}

std::string congestion_control(const Fd& fd) {
  std::array<char, 17> name{};
  socklen_t bytes = name.size() - 1;
  if (::getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &bytes) != 0) {
    return {};
  }
  return name.data();
}

std::string peer_name(const Fd& fd) {
  SocketAddress far;
  far.bytes = sizeof(far.storage);
  if (::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&far.storage), &far.bytes) != 0) {
    return "an address that is gone";
  }
  return to_string(far);
}

std::optional<std::string> silent_peer(const Fd& fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (::getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
      info.tcpi_last_ack_recv < kSilentMs) {
    return std::nullopt;
  }
  if (info.tcpi_retransmits >= kRetransmitsMax || info.tcpi_probes >= kProbesMax) {
    return fmt::format("its machine has not answered for {} s, {} retransmissions and {} probes",
                       info.tcpi_last_ack_recv / 1000, info.tcpi_retransmits, info.tcpi_probes);
  }
  return std::nullopt;
}

bool stalled(const Fd& fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  return ::getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
         info.tcpi_retransmits > 0 && info.tcpi_unacked > 0 &&
         info.tcpi_last_ack_recv >= kStalledMs;
}

}  // namespace isthmus::tcp
