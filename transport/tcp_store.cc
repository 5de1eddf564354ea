#include "transport/tcp_store.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/env.h"
#include "transport/tcp_store_server.h"
#include "transport/tcp_store_sockets.h"
#include "transport/tcp_store_wire.h"

namespace isthmus {
namespace {

// Beyond a get()'s deadline, for the sentence that says who has not come.
constexpr std::int64_t kMissingMs = 500;

template <typename T>
std::string_view bytes_of(const T& object) {
  return {reinterpret_cast<const char*>(&object), sizeof object};
}

Deadline answer_deadline() {
  return Deadline::after_ms(env().CONNECT_TIMEOUT_S * 1000);
}

}  // namespace

TcpStore::TcpStore(Private, std::string host, std::uint16_t port, Member member)
    : host_(std::move(host)), reach_(host_), port_(port), member_(member) {}

TcpStore::~TcpStore() = default;

Result<std::unique_ptr<TcpStore>> TcpStore::serve(std::string host, std::uint16_t port,
                                                  Deadline deadline, Member member) {
  ISTHMUS_ASSIGN(std::unique_ptr<store::Server> server, store::Server::create(host, port));
  std::unique_ptr<TcpStore> made =
      std::make_unique<TcpStore>(Private{}, std::move(host), server->port(), member);
  // Its own name may lead elsewhere (a service address, another family): loopback always works.
  made->reach_ = made->host_ == "::1" ? "::1" : "127.0.0.1";
  made->server_ = std::move(server);
  ISTHMUS_TRY(made->open(deadline));
  return made;
}

Result<std::unique_ptr<TcpStore>> TcpStore::connect(std::string host, std::uint16_t port,
                                                    Deadline deadline, Member member) {
  std::unique_ptr<TcpStore> made =
      std::make_unique<TcpStore>(Private{}, std::move(host), port, member);
  ISTHMUS_TRY(made->open(deadline));
  return made;
}

Error TcpStore::lost(int sys_errno) const {
  Error error = sys_errno == 0
                    ? Error{.code = Code::kPeerDead,
                            .message = fmt::format("the rendezvous store at {} closed the "
                                                   "connection; has rank 0 ended?",
                                                   store::endpoint_text(host_, port_))}
                    : system_error(Code::kPeerDead, sys_errno,
                                   fmt::format("lost the connection to the rendezvous store at {}; "
                                               "has rank 0 ended?",
                                               store::endpoint_text(host_, port_)));
  error.culprit = 0;
  return error;
}

// Connects and greets, again when a connection ends before it is greeted: the server of an earlier
// run may just be going down.
Status TcpStore::open(Deadline deadline) {
  for (;;) {
    ISTHMUS_ASSIGN(fd_, store::connect_to(reach_, port_, deadline));
    const Status greeted = greet(deadline);
    if (greeted.ok()) {
      return {};
    }
    fd_.reset();
    if (greeted.error().code != Code::kPeerDead || deadline.passed(monotonic_ns())) {
      return greeted.error();
    }
    ::poll(nullptr, 0, 20);
  }
}

Status TcpStore::greet(Deadline deadline) {
  const store::Hello mine{.rank = member_.rank, .world = member_.world};
  ISTHMUS_TRY(send_all(bytes_of(mine), deadline));
  store::Hello theirs;
  ISTHMUS_TRY(receive_all(&theirs, sizeof theirs, deadline));
  if (theirs.magic != mine.magic) {
    return Error{.code = Code::kProtocol,
                 .message = fmt::format("what answers at {} is no isthmus store; another program "
                                        "has the port: choose another (MASTER_PORT)",
                                        store::endpoint_text(host_, port_))};
  }
  if (theirs.version != store::kVersion) {
    return Error{.code = Code::kProtocol,
                 .culprit = 0,
                 .message = fmt::format("the rendezvous store at {} speaks version {}, this rank "
                                        "version {}; install the same isthmus on all ranks",
                                        store::endpoint_text(host_, port_), theirs.version,
                                        store::kVersion)};
  }
  return {};
}

Status TcpStore::send_all(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      ISTHMUS_ASSIGN(const bool ready, store::wait_for(fd_, POLLOUT, deadline));
      if (!ready) {
        return Error{.code = Code::kTimeout,
                     .culprit = 0,
                     .message = fmt::format("the rendezvous store at {} takes no data; is rank 0 "
                                            "stopped?",
                                            store::endpoint_text(host_, port_))};
      }
    } else if (errno != EINTR) {
      return lost(errno);
    }
  }
  return {};
}

Status TcpStore::receive_all(void* to, std::size_t bytes, Deadline deadline) {
  std::byte* next = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::recv(fd_.get(), next, bytes, 0);
    if (got > 0) {
      next += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0) {
      return lost(0);
    } else if (errno == EAGAIN) {
      ISTHMUS_ASSIGN(const bool ready, store::wait_for(fd_, POLLIN, deadline));
      if (!ready) {
        return Error{.code = Code::kTimeout,
                     .culprit = 0,
                     .message = fmt::format("the rendezvous store at {} does not answer; is rank 0 "
                                            "stopped, or has another program the port?",
                                            store::endpoint_text(host_, port_))};
      }
    } else if (errno != EINTR) {
      return lost(errno);
    }
  }
  return {};
}

// On any failure but kTimeout before the reply began, the connection is given up: the next request
// makes a new one.
Result<std::string> TcpStore::request(store::Request kind, std::string_view key,
                                      std::string_view value, Deadline deadline) {
  if (key.size() > store::kKeyBytesMax || value.size() > store::kValueBytesMax) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("a key of {} bytes with a value of {} bytes does not fit a "
                                        "TCP store: at most {} and {}",
                                        key.size(), value.size(), store::kKeyBytesMax,
                                        store::kValueBytesMax)};
  }
  if (!fd_.valid()) {
    ISTHMUS_TRY(open(deadline));
  }
  const store::RequestHeader header{.kind = static_cast<std::uint32_t>(kind),
                                    .number = ++number_,
                                    .key_bytes = static_cast<std::uint32_t>(key.size()),
                                    .value_bytes = static_cast<std::uint32_t>(value.size())};
  std::string frame(bytes_of(header));
  frame += key;
  frame += value;
  Status status = send_all(frame, deadline);
  store::ReplyHeader reply;
  std::string answer;
  while (status.ok()) {
    const Result<bool> ready = store::wait_for(fd_, POLLIN, deadline);
    if (ready.ok() && !*ready) {
      // The reply may come later: its number will tell.
      return Error{.code = Code::kTimeout,
                   .culprit = 0,
                   .message = fmt::format("no answer in time from the rendezvous store at {} about "
                                          "key '{}'; is rank 0 stopped?",
                                          store::endpoint_text(host_, port_), key)};
    }
    status = ready.ok() ? receive_all(&reply, sizeof reply, answer_deadline()) : ready.error();
    if (status.ok() && reply.value_bytes > store::kValueBytesMax) {
      status = Error{.code = Code::kProtocol,
                     .culprit = 0,
                     .message = fmt::format("the rendezvous store at {} announced a value of {} "
                                            "bytes, expected at most {}",
                                            store::endpoint_text(host_, port_), reply.value_bytes,
                                            store::kValueBytesMax)};
    }
    if (status.ok()) {
      answer.resize(reply.value_bytes);
      status = receive_all(answer.data(), answer.size(), answer_deadline());
    }
    if (status.ok() && reply.number == number_) {
      break;
    }
  }
  if (!status.ok()) {
    fd_.reset();
    return status.error();
  }
  if (reply.answer == static_cast<std::uint32_t>(store::Answer::kOk)) {
    return answer;
  }
  const bool full = reply.answer == static_cast<std::uint32_t>(store::Answer::kFull);
  return Error{.code = full ? Code::kResource : Code::kInvalidArgument,
               .message = fmt::format("the rendezvous store at {} refused key '{}': {}",
                                      store::endpoint_text(host_, port_), key, answer)};
}

Status TcpStore::set(std::string_view key, std::string_view value) {
  const Result<std::string> answer = request(store::Request::kSet, key, value, answer_deadline());
  return answer.ok() ? Status() : Status(answer.error());
}

Result<std::int64_t> TcpStore::add(std::string_view key, std::int64_t amount) {
  ISTHMUS_ASSIGN(const std::string answer,
                 request(store::Request::kAdd, key, bytes_of(amount), answer_deadline()));
  std::int64_t sum = 0;
  if (answer.size() != sizeof sum) {
    return Error{
        .code = Code::kProtocol,
        .culprit = 0,
        .message = fmt::format("the rendezvous store at {} answered add() with {} bytes, "
                               "expected {}",
                               store::endpoint_text(host_, port_), answer.size(), sizeof sum)};
  }
  std::memcpy(&sum, answer.data(), sizeof sum);
  return sum;
}

Result<std::string> TcpStore::get(std::string_view key, Deadline deadline) {
  const std::int64_t begin_ns = monotonic_ns();
  Result<std::string> answer = request(store::Request::kGet, key, {}, deadline);
  if (!answer.ok() && answer.error().code == Code::kTimeout && fd_.valid()) {
    return Error{.code = Code::kTimeout,
                 .message = fmt::format("nobody set key '{}' at the rendezvous store {} within {} "
                                        "ms{}",
                                        key, store::endpoint_text(host_, port_),
                                        (monotonic_ns() - begin_ns) / 1'000'000, who_is_missing())};
  }
  return answer;
}

std::string TcpStore::who_is_missing() {
  const Result<std::string> missing =
      request(store::Request::kMissing, {}, {}, Deadline::after_ms(kMissingMs));
  if (!missing.ok()) {
    return "; its server does not answer either: is rank 0 stopped?";
  }
  return missing->empty() ? "" : "; " + *missing;
}

}  // namespace isthmus
