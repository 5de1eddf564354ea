#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "transport/rendezvous.h"

namespace isthmus {

namespace store {
class Server;
enum class Request : std::uint32_t;
}  // namespace store

// A rendezvous over TCP: one rank, by custom rank 0, serves, all are clients. Hosts are names, IPv4
// or IPv6 addresses. A key is either a value (set) or a counter (add); get() gives a counter's sum
// in decimal. Keys have up to 4 KiB, values up to 16 MiB, all together up to 1 GiB. The server
// answers for as long as its object lives; whoever still waits then gets kPeerDead. Thread rule:
// one caller at a time. The server has a thread of its own.
class TcpStore final : public Rendezvous {
  struct Private {};  // only serve() and connect() make one

 public:
  // Who the client is: lets a time-out say which ranks have never connected. Optional.
  struct Member {
    int rank = -1;
    int world = 0;
  };

  // Serves, and is a client too. Port 0 is any free one. Fails at once when the port is in use.
  static Result<std::unique_ptr<TcpStore>> serve(std::string host, std::uint16_t port,
                                                 Deadline deadline, Member member = {-1, 0});

  // Tries until the deadline: the server may start later than its clients.
  static Result<std::unique_ptr<TcpStore>> connect(std::string host, std::uint16_t port,
                                                   Deadline deadline, Member member = {-1, 0});

  TcpStore(Private, std::string host, std::uint16_t port, Member member);
  ~TcpStore() override;

  std::uint16_t port() const { return port_; }

  // Both have ISTHMUS_CONNECT_TIMEOUT_S for the server's answer.
  Status set(std::string_view key, std::string_view value) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override;

  Result<std::string> get(std::string_view key, Deadline deadline) override;

 private:
  Status open(Deadline deadline);
  Status greet(Deadline deadline);
  Result<std::string> request(store::Request kind, std::string_view key, std::string_view value,
                              Deadline deadline);
  Status send_all(std::string_view bytes, Deadline deadline);
  Status receive_all(void* to, std::size_t bytes, Deadline deadline);
  Error lost(int sys_errno) const;
  std::string who_is_missing();

  std::string host_;
  std::string reach_;  // host that this client connects to
  std::uint16_t port_;
  Member member_;
  std::uint32_t number_ = 0;  // of the last request
  std::unique_ptr<store::Server> server_;
  Fd fd_;  // closed before the server ends; invalid after a failure, then made again
};

}  // namespace isthmus
