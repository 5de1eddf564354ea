#include "plugins/nccl/dial.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include "transport/tcp/sockets.h"

namespace isthmus::nccl {
namespace {

// Time for one address: a machine that is there answers in milliseconds, a process that holds the
// listener always runs its thread.
constexpr std::int64_t kDialNs = 2'500'000'000;

}  // namespace

void Dial::start(const tcp::Rail& rail, const Hello& hello, std::int64_t now_ns) {
  hello_ = hello;
  got_ = 0;
  refused_ = false;
  until_ns_ = now_ns + kDialNs;
  Result<Fd> fd = tcp::start_connect(rail.to, rail.bound ? &rail.from : nullptr);
  if (!fd.ok()) {
    const int error = fd.error().sys_errno;
    fail(fd.error().message, error == ECONNREFUSED);
    return;
  }
  fd_ = std::move(*fd);
  state_ = State::kConnecting;
}

Dial::State Dial::poll(std::int64_t now_ns) {
  if (state_ == State::kConnecting) {
    connect_done();
  }
  if (state_ == State::kAsking) {
    read_welcome();
  }
  if ((state_ == State::kConnecting || state_ == State::kAsking) && now_ns >= until_ns_) {
    fail(state_ == State::kConnecting ? "no answer from that machine for 2.5 s"
                                      : "connected, but no isthmus answered for 2.5 s",
         false);
  }
  return state_;
}

void Dial::connect_done() {
  pollfd ready{.fd = fd_.get(), .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, 0) <= 0) {
    return;
  }
  if (const int error = tcp::finish_connect(fd_); error != 0) {
    fail(std::strerror(error), error == ECONNREFUSED);
    return;
  }
  tcp::tune_connection(fd_);
  const ssize_t sent = ::send(fd_.get(), &hello_, sizeof(hello_), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(sizeof(hello_))) {
    fail(fmt::format("the hello could not be sent: {}", std::strerror(sent < 0 ? errno : EIO)),
         true);
    return;
  }
  state_ = State::kAsking;
}

void Dial::read_welcome() {
  auto* const at = reinterpret_cast<std::byte*>(&welcome_) + got_;
  const ssize_t got = ::recv(fd_.get(), at, sizeof(welcome_) - got_, MSG_DONTWAIT);
  if (got < 0) {
    if (errno != EAGAIN && errno != EINTR) {
      fail(std::strerror(errno), true);
    }
    return;
  }
  if (got == 0) {
    fail("it hung up: its listening comm is closed, or it is another program", true);
    return;
  }
  got_ += static_cast<std::size_t>(got);
  if (got_ < sizeof(welcome_)) {
    return;
  }
  if (welcome_.magic != kHelloMagic || welcome_.comm != hello_.comm) {
    fail("what answers there is not the isthmus that was called", true);
  } else if (welcome_.refused != 0) {
    fail(fmt::format("it speaks version {} of the protocol, this process version {}",
                     welcome_.version, kProtocolVersion),
         true);
  } else {
    state_ = State::kReady;
  }
}

Fd Dial::take() {
  state_ = State::kIdle;
  return std::move(fd_);
}

void Dial::drop() {
  fd_.reset();
  state_ = State::kIdle;
}

void Dial::fail(std::string why, bool refused) {
  fd_.reset();
  why_ = std::move(why);
  refused_ = refused;
  state_ = State::kFailed;
}

}  // namespace isthmus::nccl
