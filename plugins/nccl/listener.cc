#include "plugins/nccl/listener.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "plugins/nccl/registry.h"
#include "plugins/nccl/report.h"

namespace isthmus::nccl {
namespace {

// Who has not said a good hello after this is dropped, and so is the oldest of too many.
constexpr std::int64_t kStrangerNs = 5'000'000'000;
constexpr std::size_t kStrangersMax = 256;
// Comms that called and that nobody accepted yet; what is beyond is dropped, and calls again.
constexpr std::size_t kWaitingMax = 4096;
constexpr int kTickMs = 200;  // while strangers are there, or descriptors are not

std::pair<std::uint64_t, std::uint64_t> key_of(const Nonce& nonce) {
  return {nonce.low, nonce.high};
}

Status watch(const Fd& epoll, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return system_error(Code::kIo, errno, "Cannot watch a descriptor of the NCCL listener");
  }
  return {};
}

}  // namespace

Listener& Listener::get() {
  // Never destroyed: its thread runs until the process ends.
  static Listener& one = *std::make_unique<Listener>().release();
  return one;
}

Status Listener::start(tcp::PortRange range) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (started_) {
    return {};
  }
  ISTHMUS_ASSIGN(listening_, tcp::open_listener(range, static_cast<unsigned>(::getpid())));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  doorbell_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !doorbell_.valid()) {
    return system_error(Code::kResource, errno, "Cannot open descriptors of the NCCL listener");
  }
  ISTHMUS_TRY(watch(epoll_, listening_.fd.get(), EPOLLIN));
  ISTHMUS_TRY(watch(epoll_, doorbell_.get(), EPOLLIN));
  // The host's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { run(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  started_ = true;
  return {};
}

Result<Nonce> Listener::open() {
  Nonce nonce;
  if (::getrandom(&nonce, sizeof(nonce), 0) != static_cast<ssize_t>(sizeof(nonce))) {
    return system_error(Code::kIo, errno, "Cannot read random bytes for a handle");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  queues_[key_of(nonce)];
  return nonce;
}

void Listener::close(const Nonce& nonce) {
  std::deque<Accepted> dropped;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = queues_.find(key_of(nonce)); found != queues_.end()) {
    dropped = std::move(found->second);
    queues_.erase(found);
  }
  std::erase_if(mailboxes_, [](const auto& each) { return each.second.expired(); });
}

std::optional<Listener::Accepted> Listener::next(const Nonce& nonce) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = queues_.find(key_of(nonce));
  if (found == queues_.end() || found->second.empty()) {
    return std::nullopt;
  }
  std::optional<Accepted> out = std::move(found->second.front());
  found->second.pop_front();
  return out;
}

void Listener::ask_for_dump() {
  const int before = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t rung = ::write(doorbell_.get(), &one, sizeof(one));
  errno = before;
}

void Listener::run() {
  enter_own_thread();
  ::pthread_setname_np(::pthread_self(), "isthmus-nccl");
  std::array<epoll_event, 64> events{};
  for (;;) {
    const bool soon = paused_ || !strangers_.empty();
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), soon ? kTickMs : -1);
    if (count < 0 && errno != EINTR) {
      report(LogLevel::kWarn,
             fmt::format("the listener of the NCCL plug-in has ended: {}", std::strerror(errno)));
      return;
    }
    const std::int64_t now_ns = monotonic_ns();
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listening_.fd.get()) {
        accept_all(now_ns);
      } else if (fd == doorbell_.get()) {
        dump();
      } else if (const auto found = strangers_.find(fd); found != strangers_.end()) {
        if (!read_hello(&found->second)) {
          strangers_.erase(found);
        }
      }
    }
    drop_late(now_ns);
  }
}

void Listener::accept_all(std::int64_t now_ns) {
  for (;;) {
    Result<Fd> fd = tcp::accept_one(listening_.fd);
    if (!fd.ok()) {
      if (!paused_) {
        if (!told_) {
          report(LogLevel::kWarn, fd.error().message + " Raise ulimit -n.");
        }
        told_ = true;
        paused_ = true;
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listening_.fd.get(), nullptr);
      }
      return;
    }
    if (!fd->valid()) {
      return;
    }
    if (strangers_.size() >= kStrangersMax) {
      strangers_.erase(std::min_element(
          strangers_.begin(), strangers_.end(),
          [](const auto& a, const auto& b) { return a.second.until_ns < b.second.until_ns; }));
    }
    const int raw = fd->get();
    if (watch(epoll_, raw, EPOLLIN).ok()) {
      strangers_[raw] = {
          .fd = std::move(*fd), .hello = {}, .got = 0, .until_ns = now_ns + kStrangerNs};
    }
  }
}

// False when the stranger is none any more, or is to be dropped.
bool Listener::read_hello(Stranger* stranger) {
  auto* const at = reinterpret_cast<std::byte*>(&stranger->hello) + stranger->got;
  const ssize_t got = ::recv(stranger->fd.get(), at, sizeof(Hello) - stranger->got, MSG_DONTWAIT);
  if (got < 0) {
    return errno == EAGAIN || errno == EINTR;
  }
  if (got == 0) {
    return false;
  }
  stranger->got += static_cast<std::size_t>(got);
  if (stranger->got >= sizeof(std::uint32_t) && stranger->hello.magic != kHelloMagic) {
    return false;
  }
  if (stranger->got < sizeof(Hello)) {
    return true;
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger->fd.get(), nullptr);
  admit(std::move(*stranger));
  return false;
}

void Listener::admit(Stranger stranger) {
  const Hello& hello = stranger.hello;
  Welcome welcome;
  welcome.comm = hello.comm;
  welcome.pid = static_cast<std::uint32_t>(::getpid());
  welcome.refused = hello.version == kProtocolVersion ? 0 : 1;
  tcp::tune_connection(stranger.fd);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto queue = queues_.find(key_of(hello.nonce));
  const auto known = mailboxes_.find(hello.comm);
  const std::shared_ptr<Mailbox> mailbox =
      known == mailboxes_.end() ? nullptr : known->second.lock();
  // Whoever knows the number of a comm that is there has had its nonce.
  const bool wanted = hello.flow == 0 && mailbox == nullptr
                          ? queue != queues_.end() && queue->second.size() < kWaitingMax
                          : mailbox != nullptr;
  if (!wanted) {
    return;
  }
  // The first bytes in this direction: the kernel takes them.
  const ssize_t sent =
      ::send(stranger.fd.get(), &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(sizeof(welcome)) || welcome.refused != 0) {
    return;
  }
  Arrival arrival{.fd = std::move(stranger.fd), .hello = hello};
  if (mailbox != nullptr) {
    mailbox->put(std::move(arrival));
    return;
  }
  auto fresh = std::make_shared<Mailbox>();
  mailboxes_[hello.comm] = fresh;
  queue->second.emplace_back(std::move(arrival), std::move(fresh));
}

void Listener::drop_late(std::int64_t now_ns) {
  std::erase_if(strangers_, [&](const auto& each) { return each.second.until_ns <= now_ns; });
  if (paused_) {
    paused_ = !watch(epoll_, listening_.fd.get(), EPOLLIN).ok();
  }
}

void Listener::dump() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t read = ::read(doorbell_.get(), &count, sizeof(count));
  report(LogLevel::kWarn,
         "state of all connections, as asked for by a signal:\n" + registry_dump());
}

}  // namespace isthmus::nccl
