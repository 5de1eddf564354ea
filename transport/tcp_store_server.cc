#include "transport/tcp_store_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/fork.h"
#include "base/log.h"
#include "transport/tcp_store_sockets.h"

namespace isthmus::store {
namespace {

constexpr std::int64_t kNsPerMs = 1'000'000;

// A connection has this long to say hello.
constexpr std::int64_t kHelloMs = 5000;

// Connections that have not said hello, at once. A job's ranks are strangers for a moment only.
constexpr std::size_t kStrangersMax = 4096;

// Out of descriptors: accepting pauses for this long.
constexpr std::int64_t kAcceptPauseMs = 100;

constexpr std::size_t kReadBytes = std::size_t{64} << 10;

// epoll's user data: clients' ids begin above these.
constexpr std::uint64_t kStopId = 0;
constexpr std::uint64_t kFirstListenerId = 1;
constexpr std::uint64_t kFirstClientId = 16;

// Ranks named in one sentence.
constexpr std::size_t kNamedMax = 16;

}  // namespace

Result<std::unique_ptr<Server>> Server::create(const std::string& host, std::uint16_t port) {
  std::unique_ptr<Server> server = std::make_unique<Server>(Private{});
  ISTHMUS_TRY(server->start(host, port));
  return server;
}

Status Server::start(const std::string& host, std::uint16_t port) {
  port_ = port;
  next_id_ = kFirstClientId;
  ISTHMUS_ASSIGN(listeners_, listen_for(host, &port_));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  stop_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !stop_.valid()) {
    return system_error(Code::kResource, errno, "cannot make the rendezvous server's descriptors");
  }
  const auto add = [&](const Fd& fd, std::uint64_t id) -> Status {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
      return system_error(Code::kResource, errno, "cannot watch the rendezvous server's port");
    }
    return {};
  };
  ISTHMUS_TRY(add(stop_, kStopId));
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    ISTHMUS_TRY(add(listeners_[i], kFirstListenerId + i));
  }
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {};
}

Server::~Server() {
  if (!thread_.joinable()) {
    return;
  }
  if (forked_child()) {
    thread_.detach();  // it lives on in the parent only
    return;
  }
  const std::uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof one) != sizeof one) {
    log(LogLevel::kError, "store", "cannot stop the rendezvous server: {}", std::strerror(errno));
  }
  thread_.join();
}

void Server::run() {
  enter_own_thread();
  std::array<epoll_event, 256> events{};
  for (;;) {
    int timeout_ms = strangers_ > 0 ? 1000 : -1;
    if (listen_again_ns_ != 0) {
      timeout_ms = static_cast<int>(kAcceptPauseMs);
    }
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    if (count < 0 && errno != EINTR) {
      log(LogLevel::kError, "store", "the rendezvous server ends: epoll_wait: {}",
          std::strerror(errno));
      return;
    }
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.u64 == kStopId) {
        return;
      }
      if (event.data.u64 < kFirstClientId) {
        accept_all(listeners_[event.data.u64 - kFirstListenerId]);
      } else {
        on_event(event.data.u64, event.events);
      }
    }
    const std::int64_t now_ns = monotonic_ns();
    if (listen_again_ns_ != 0 && now_ns >= listen_again_ns_) {
      pause_listeners(false);
    }
    if (strangers_ > 0) {
      drop_strangers(now_ns);
    }
  }
}

void Server::pause_listeners(bool pause) {
  listen_again_ns_ = pause ? monotonic_ns() + kAcceptPauseMs * kNsPerMs : 0;
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    epoll_event event = {};
    event.events = pause ? 0U : static_cast<std::uint32_t>(EPOLLIN);
    event.data.u64 = kFirstListenerId + i;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listeners_[i].get(), &event) != 0) {
      log(LogLevel::kError, "store", "cannot watch port {}: {}", port_, std::strerror(errno));
    }
  }
}

void Server::accept_all(const Fd& listener) {
  for (;;) {
    Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        log(LogLevel::kWarn, "store",
            "the rendezvous server cannot take another client beside its {}: {}; raise ulimit -n",
            clients_.size(), std::strerror(errno));
        pause_listeners(true);
      }
      if (errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      return;
    }
    if (strangers_ >= kStrangersMax) {
      continue;
    }
    const int on = 1;
    // Both only help: an answer leaves at once, a dead machine is noticed.
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    std::unique_ptr<Client> client = std::make_unique<Client>();
    client->id = next_id_++;
    client->since_ns = monotonic_ns();
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = client->id;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
      log(LogLevel::kWarn, "store", "cannot watch a new client: {}", std::strerror(errno));
      continue;
    }
    client->fd = std::move(fd);
    ++strangers_;
    clients_.emplace(client->id, std::move(client));
  }
}

void Server::drop_strangers(std::int64_t now_ns) {
  std::vector<std::uint64_t> late;
  for (const auto& [id, client] : clients_) {
    if (!client->known && now_ns - client->since_ns > kHelloMs * kNsPerMs) {
      late.push_back(id);
    }
  }
  for (const std::uint64_t id : late) {
    drop(id);
  }
}

void Server::drop(std::uint64_t id) {
  const auto it = clients_.find(id);
  stop_waiting(*it->second);
  strangers_ -= it->second->known ? 0U : 1U;
  clients_.erase(it);
}

void Server::on_event(std::uint64_t id, std::uint32_t events) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) {
    return;  // dropped by an earlier event of this round
  }
  Client& client = *it->second;
  bool alive = (events & (EPOLLERR | EPOLLHUP)) == 0;
  if (alive && (events & EPOLLOUT) != 0) {
    alive = flush(client) && handle_input(client);
  }
  if (alive && (events & EPOLLIN) != 0) {
    alive = read_some(client) && handle_input(client);
  }
  if (alive) {
    watch(client);
  } else {
    drop(id);
  }
}

// While an answer is under way the client is not read: it has no business to say more.
void Server::watch(Client& client) {
  epoll_event event = {};
  event.events = static_cast<std::uint32_t>(client.out.empty() ? EPOLLIN : EPOLLOUT);
  event.data.u64 = client.id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.fd.get(), &event) != 0) {
    log(LogLevel::kWarn, "store", "cannot watch a client: {}", std::strerror(errno));
  }
}

// Memory grows with what came, never with what was announced. A stranger gets room for a hello.
bool Server::read_some(Client& client) {
  const std::size_t room = client.known ? kReadBytes : sizeof(Hello);
  if (client.in.size() < client.in_bytes + room) {
    client.in.resize(client.in_bytes + room);
  }
  const std::size_t want = client.known ? room : sizeof(Hello) - client.in_bytes;
  const ssize_t got = ::recv(client.fd.get(), client.in.data() + client.in_bytes, want, 0);
  if (got <= 0) {
    return got < 0 && (errno == EAGAIN || errno == EINTR);
  }
  client.in_bytes += static_cast<std::size_t>(got);
  return true;
}

bool Server::handle_hello(Client& client) {
  Hello hello;
  const Hello mine;
  const std::size_t got = std::min(client.in_bytes, hello.magic.size());
  if (std::memcmp(client.in.data(), mine.magic.data(), got) != 0) {
    log(LogLevel::kDebug, "store", "dropped a connection that is no isthmus client");
    return false;
  }
  if (client.in_bytes < sizeof hello) {
    return true;
  }
  std::memcpy(&hello, client.in.data(), sizeof hello);
  client.in_bytes = 0;
  client.known = true;
  --strangers_;
  if (hello.world > 0 && hello.world <= kWorldMax && hello.rank >= 0 && hello.rank < hello.world) {
    seen_.resize(std::max(seen_.size(), static_cast<std::size_t>(hello.world)));
    seen_[static_cast<std::size_t>(hello.rank)] = true;
  }
  // A client of another version learns ours from the answer and says so to its user.
  client.out.resize(sizeof mine);
  std::memcpy(client.out.data(), &mine, sizeof mine);
  return flush(client);
}

bool Server::handle_input(Client& client) {
  if (!client.known && client.in_bytes > 0) {
    return handle_hello(client);
  }
  std::size_t used = 0;
  while (client.out.empty() && client.in_bytes - used >= sizeof(RequestHeader)) {
    RequestHeader header;
    std::memcpy(&header, client.in.data() + used, sizeof header);
    if (header.key_bytes > kKeyBytesMax || header.value_bytes > kValueBytesMax) {
      log(LogLevel::kWarn, "store", "dropped a client that announced {} bytes of key, {} of value",
          header.key_bytes, header.value_bytes);
      return false;
    }
    const std::size_t bytes = sizeof header + header.key_bytes + header.value_bytes;
    if (client.in_bytes - used < bytes) {
      break;
    }
    const char* body = reinterpret_cast<const char*>(client.in.data() + used + sizeof header);
    used += bytes;
    stop_waiting(client);
    handle_request(client, header, {body, header.key_bytes},
                   {body + header.key_bytes, header.value_bytes});
    if (!client.out.empty() && !flush(client)) {
      return false;
    }
  }
  if (used > 0) {
    client.in_bytes -= used;
    std::memmove(client.in.data(), client.in.data() + used, client.in_bytes);
    client.in.resize(client.in_bytes);
    client.in.shrink_to_fit();
  }
  return true;
}

void Server::handle_request(Client& client, const RequestHeader& header, std::string_view key,
                            std::string_view value) {
  const auto reply = [&](Answer kind, std::string text) {
    answer(client, header.number, kind, std::make_shared<const std::string>(std::move(text)));
  };
  const Request kind = static_cast<Request>(header.kind);
  if (kind == Request::kMissing) {
    reply(Answer::kOk, missing_ranks());
    return;
  }
  const std::string name(key);
  const auto it = entries_.find(name);
  if (kind == Request::kGet) {
    if (it == entries_.end()) {
      client.waits_for = name;
      client.waits_number = header.number;
      waiting_[name].insert(client.id);
    } else if (it->second.counter) {
      reply(Answer::kOk, fmt::format("{}", it->second.sum));
    } else {
      answer(client, header.number, Answer::kOk, it->second.value);
    }
    return;
  }
  const bool counter = kind == Request::kAdd;
  std::int64_t amount = 0;
  if (kind != Request::kSet && (!counter || value.size() != sizeof amount)) {
    reply(Answer::kMixed, "the request is malformed");
    return;
  }
  if (it != entries_.end() && it->second.counter != counter) {
    reply(Answer::kMixed,
          counter ? "it is a value: add() is refused" : "it is a counter: set() is refused");
    return;
  }
  const std::size_t replaced =
      it == entries_.end() ? 0 : key.size() + (counter ? sizeof amount : it->second.value->size());
  const std::size_t stored = stored_bytes_ - replaced + key.size() + value.size();
  if (stored > kStoreBytesMax) {
    reply(Answer::kFull, fmt::format("the store would hold more than {} bytes", kStoreBytesMax));
    return;
  }
  stored_bytes_ = stored;
  Entry& entry = entries_[name];
  entry.counter = counter;
  if (counter) {
    std::memcpy(&amount, value.data(), sizeof amount);
    // Wraps like the machine's addition: a peer's bytes must not be undefined behaviour here.
    entry.sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(entry.sum) +
                                          static_cast<std::uint64_t>(amount));
    std::string sum(sizeof entry.sum, '\0');
    std::memcpy(sum.data(), &entry.sum, sizeof entry.sum);
    reply(Answer::kOk, std::move(sum));
  } else {
    entry.value = std::make_shared<const std::string>(value);
    reply(Answer::kOk, "");
  }
  wake(name);
}

void Server::answer(Client& client, std::uint32_t number, Answer kind,
                    std::shared_ptr<const std::string> value) {
  const ReplyHeader header{.answer = static_cast<std::uint32_t>(kind),
                           .number = number,
                           .value_bytes = static_cast<std::uint32_t>(value->size())};
  client.out.resize(sizeof header);
  std::memcpy(client.out.data(), &header, sizeof header);
  client.out_value = std::move(value);
  client.sent = 0;
}

// Sends what the socket takes. False when the client is lost.
bool Server::flush(Client& client) {
  const std::size_t value_bytes = client.out_value ? client.out_value->size() : 0;
  while (client.sent < client.out.size() + value_bytes) {
    const bool head = client.sent < client.out.size();
    const void* from = head ? static_cast<const void*>(client.out.data() + client.sent)
                            : client.out_value->data() + (client.sent - client.out.size());
    const std::size_t bytes =
        head ? client.out.size() - client.sent : client.out.size() + value_bytes - client.sent;
    const int flags = MSG_NOSIGNAL | (head && value_bytes > 0 ? MSG_MORE : 0);
    const ssize_t sent = ::send(client.fd.get(), from, bytes, flags);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0) {
      return errno == EAGAIN;
    }
    client.sent += static_cast<std::size_t>(sent);
  }
  client.out.clear();
  client.out_value.reset();
  client.sent = 0;
  return true;
}

void Server::wake(const std::string& key) {
  const auto it = waiting_.find(key);
  if (it == waiting_.end()) {
    return;
  }
  const std::unordered_set<std::uint64_t> ids = std::move(it->second);
  waiting_.erase(it);
  const Entry& entry = entries_[key];
  const std::shared_ptr<const std::string> value =
      entry.counter ? std::make_shared<const std::string>(fmt::format("{}", entry.sum))
                    : entry.value;
  for (const std::uint64_t id : ids) {
    Client& client = *clients_.at(id);
    client.waits_for.clear();
    answer(client, client.waits_number, Answer::kOk, value);
    // The socket's own event ends a client that is lost: dropping here would upset the caller.
    if (!flush(client)) {
      client.out.clear();
      client.out_value.reset();
    }
    watch(client);
  }
}

void Server::stop_waiting(Client& client) {
  if (client.waits_for.empty()) {
    return;
  }
  const auto it = waiting_.find(client.waits_for);
  it->second.erase(client.id);
  if (it->second.empty()) {
    waiting_.erase(it);
  }
  client.waits_for.clear();
}

std::string Server::missing_ranks() const {
  std::string names;
  std::size_t missing = 0;
  for (std::size_t rank = 0; rank < seen_.size(); ++rank) {
    if (!seen_[rank]) {
      ++missing;
      if (missing <= kNamedMax) {
        names += fmt::format("{}{}", missing == 1 ? "" : ", ", rank);
      }
    }
  }
  if (missing == 0) {
    return seen_.empty() ? "" : fmt::format("all {} ranks have connected to it", seen_.size());
  }
  const std::string more =
      missing > kNamedMax ? fmt::format(" and {} more", missing - kNamedMax) : "";
  return fmt::format("{} {}{} of {} {} never connected to it", missing == 1 ? "rank" : "ranks",
                     names, more, seen_.size(), missing == 1 ? "has" : "have");
}

}  // namespace isthmus::store
