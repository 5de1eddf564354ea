#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "transport/tcp_store_wire.h"

namespace isthmus::store {

// The serving side of a TcpStore: one thread and one epoll for any number of clients. Connections
// that do not speak the protocol are dropped, within 5 s and 24 bytes of memory each. Bytes of
// clients are bounds-checked; who can reach the port can read and write all keys
// (docs/security.md). Thread rule: made and destroyed by one thread; everything else happens on the
// thread it owns.
class Server {
  struct Private {};  // only create() makes one

 public:
  // Listens on all addresses (dual stack), on loopback alone where `host` says loopback. Port 0 is
  // any free port.
  static Result<std::unique_ptr<Server>> create(const std::string& host, std::uint16_t port);

  explicit Server(Private) {}

  ~Server();

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  struct Client {
    Fd fd;
    std::uint64_t id = 0;
    bool known = false;         // said hello
    std::int64_t since_ns = 0;  // of the connection, until it is known
    std::vector<std::byte> in;
    std::size_t in_bytes = 0;                      // of `in` that are filled
    std::vector<std::byte> out;                    // header of the answer under way
    std::shared_ptr<const std::string> out_value;  // its value: shared with the store and others
    std::size_t sent = 0;
    std::string waits_for;  // key of a get() that waits, "" none
    std::uint32_t waits_number = 0;
  };

  struct Entry {
    std::shared_ptr<const std::string> value;  // shared with the answers under way
    std::int64_t sum = 0;
    bool counter = false;
  };

  Status start(const std::string& host, std::uint16_t port);
  void run();
  void accept_all(const Fd& listener);
  void pause_listeners(bool pause);
  void drop_strangers(std::int64_t now_ns);
  void on_event(std::uint64_t id, std::uint32_t events);
  bool read_some(Client& client);
  bool handle_input(Client& client);
  bool handle_hello(Client& client);
  void handle_request(Client& client, const RequestHeader& header, std::string_view key,
                      std::string_view value);
  void answer(Client& client, std::uint32_t number, Answer answer,
              std::shared_ptr<const std::string> value);
  bool flush(Client& client);
  void watch(Client& client);
  void wake(const std::string& key);
  void stop_waiting(Client& client);
  void drop(std::uint64_t id);
  std::string missing_ranks() const;

  std::vector<Fd> listeners_;
  std::uint16_t port_ = 0;
  Fd epoll_;
  Fd stop_;  // an eventfd
  std::uint64_t next_id_ = 0;
  std::size_t strangers_ = 0;         // clients that have not said hello
  std::int64_t listen_again_ns_ = 0;  // 0: listening
  std::size_t stored_bytes_ = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<Client>> clients_;
  std::unordered_map<std::string, Entry> entries_;
  std::unordered_map<std::string, std::unordered_set<std::uint64_t>> waiting_;  // by key
  std::vector<bool> seen_;  // ranks that have said hello; as long as the world they told
  std::thread thread_;
};

}  // namespace isthmus::store
