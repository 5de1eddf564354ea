#include <array>
#include <cerrno>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "perf/net_plugin/measure.h"

namespace isthmus::net_plugin {
namespace {

constexpr std::int64_t kLimitNs = 60'000'000'000;

Error socket_failed(const char* what) {
  return system_error(Code::kIo, errno, fmt::format("A bare socket's {} failed", what));
}

class SocketSide final : public Side {
 public:
  SocketSide(Fd socket, Channel& channel, const SideOptions& options)
      : socket_(std::move(socket)),
        channel_(channel),
        options_(options),
        slots_(static_cast<std::size_t>(options.depth),
               std::vector<std::byte>(options.most_bytes)) {}

  const std::string& label() const override { return label_; }

  Status verify(const Case& one) override {
    for (std::size_t i = 0; i < 2 * slots_.size() + 1; ++i) {
      std::byte* const data = slots_[i % slots_.size()].data();
      if (options_.rank == 0) {
        fill_pattern(data, one.bytes, i);
      }
      Status status = options_.rank == 0 ? send(data, one.bytes) : receive(data, one.bytes);
      if (status.ok() && options_.rank != 0) {
        status = check_pattern(data, one.bytes, i, label_);
      }
      if (!status.ok()) {
        return status;
      }
    }
    return Status();
  }

  Result<Burst> burst(const Case& one) override {
    const Status met = channel_.meet();
    if (!met.ok()) {
      return met.error();
    }
    if (one.kind == Kind::kLatency) {
      return latency(one);
    }
    const double cpu = cpu_seconds();
    const std::int64_t begin = monotonic_ns();
    for (std::size_t i = 0; i < one.count; ++i) {
      std::byte* const data = slots_[i % slots_.size()].data();
      const Status status = options_.rank == 0 ? send(data, one.bytes) : receive(data, one.bytes);
      if (!status.ok()) {
        return status.error();
      }
    }
    const double seconds = static_cast<double>(monotonic_ns() - begin) * 1e-9;
    return share_stream(channel_, one, options_.rank == 0 ? 0.0 : seconds, cpu_seconds() - cpu);
  }

 private:
  template <typename Call>
  Status move(std::size_t bytes, const char* what, Call call) {
    const std::int64_t begin = monotonic_ns();
    std::size_t at = 0;
    for (unsigned tries = 0; at < bytes; ++tries) {
      const ssize_t moved = call(at);
      if (moved > 0) {
        at += static_cast<std::size_t>(moved);
      } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
        return socket_failed(what);
      } else if (tries % 65536 == 65535 && monotonic_ns() - begin > kLimitNs) {
        return Error{.code = Code::kTimeout, .message = "A bare socket moved nothing for 60 s."};
      }
    }
    return Status();
  }

  Status send(const std::byte* data, std::size_t bytes) {
    return move(bytes, "send", [&](std::size_t at) {
      return ::send(socket_.get(), data + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    });
  }

  Status receive(std::byte* data, std::size_t bytes) {
    return move(bytes, "recv", [&](std::size_t at) {
      return ::recv(socket_.get(), data + at, bytes - at, MSG_DONTWAIT);
    });
  }

  Result<Burst> latency(const Case& one) {
    std::vector<double> us;
    us.reserve(one.count);
    std::byte* const data = slots_[0].data();
    for (std::size_t i = 0; i < one.count; ++i) {
      const std::int64_t begin = monotonic_ns();
      Status status = options_.rank == 0 ? send(data, one.bytes) : receive(data, one.bytes);
      if (status.ok()) {
        status = options_.rank == 0 ? receive(data, one.bytes) : send(data, one.bytes);
      }
      if (!status.ok()) {
        return status.error();
      }
      us.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-3 / 2);
    }
    return Burst{.us = median_of(std::move(us))};
  }

  std::string label_ = "bare socket";
  Fd socket_;
  Channel& channel_;
  SideOptions options_;
  std::vector<std::vector<std::byte>> slots_;
};

Result<Fd> joined(Channel& channel, const SideOptions& options) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  if (::inet_pton(AF_INET, options.address.c_str(), &address.sin_addr) != 1) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("--address is '{}', expected rank 1's IPv4 address.",
                                        options.address)};
  }
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (options.rank == 0) {
    const Result<in_port_t> port = channel.swap(in_port_t{0});
    if (!port.ok()) {
      return port.error();
    }
    address.sin_port = *port;
    if (::connect(socket.get(), any, sizeof(address)) != 0) {
      return socket_failed("connect");
    }
    return socket;
  }
  socklen_t length = sizeof(address);
  if (::bind(socket.get(), any, length) != 0 || ::listen(socket.get(), 1) != 0 ||
      ::getsockname(socket.get(), any, &length) != 0) {
    return socket_failed("listen");
  }
  const Result<in_port_t> told = channel.swap(address.sin_port);
  if (!told.ok()) {
    return told.error();
  }
  Fd accepted(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted.valid()) {
    return socket_failed("accept");
  }
  return accepted;
}

}  // namespace

Result<std::unique_ptr<Side>> socket_side(Channel& channel, const SideOptions& options) {
  Result<Fd> socket = joined(channel, options);
  if (!socket.ok()) {
    return socket.error();
  }
  const int on = 1;
  ::setsockopt(socket->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return std::unique_ptr<Side>(std::make_unique<SocketSide>(std::move(*socket), channel, options));
}

}  // namespace isthmus::net_plugin
