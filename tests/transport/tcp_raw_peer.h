#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "tests/transport/tcp_world.h"
#include "transport/tcp/addresses.h"
#include "transport/tcp/wire.h"

namespace isthmus::tcp_test {

// A socket of the test that talks to a rank byte by byte.
class RawPeer {
 public:
  RawPeer(TcpWorld* world, int rank) : world_(world) {
    const tcp::Address address = *tcp::decode_address(world->at(rank).address());
    const tcp::SocketAddress to = tcp::socket_address(address.candidates.back());
    fd_ = Fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.bytes), 0);
    EXPECT_EQ(::fcntl(fd_.get(), F_SETFL, O_NONBLOCK), 0);
  }

  // Sends all of it, while the ranks go on. False when the rank has closed.
  bool send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (put < 0 && errno != EAGAIN) {
        return false;
      }
      bytes = bytes.subspan(put < 0 ? 0 : static_cast<std::size_t>(put));
      world_->turn();
    }
    return true;
  }

  bool send(const tcp::FrameHeader& header, std::span<const std::byte> payload = {}) {
    return send(std::as_bytes(std::span(&header, 1))) && send(payload);
  }

  // Exactly so many bytes; fewer when the rank closes before.
  std::vector<std::byte> receive(std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    std::size_t got = 0;
    bool over = false;
    world_->run_until(
        [&] {
          if (got == bytes) {
            return true;
          }
          const ssize_t more = ::recv(fd_.get(), out.data() + got, bytes - got, 0);
          got += more > 0 ? static_cast<std::size_t>(more) : 0;
          over = more == 0 || (more < 0 && errno != EAGAIN);
          return over || got == bytes;
        },
        "bytes of the rank");
    out.resize(got);
    return out;
  }

  bool closed() { return receive(1).empty(); }

  tcp::FrameHeader receive_header() {
    tcp::FrameHeader header;
    header.type = 0;
    const std::vector<std::byte> bytes = receive(sizeof(header));
    if (bytes.size() == sizeof(header)) {
      std::memcpy(&header, bytes.data(), sizeof(header));
    }
    return header;
  }

  static tcp::Hello hello(int sender, int expected, int ranks) {
    tcp::Hello out;
    out.incarnation = 0x1234567;
    out.config = 42;
    out.sender = static_cast<std::uint32_t>(sender);
    out.expected = static_cast<std::uint32_t>(expected);
    out.ranks = static_cast<std::uint32_t>(ranks);
    return out;
  }

  static tcp::FrameHeader frame(tcp::FrameType type, int sender, std::size_t payload,
                                const Tag& tag = {}) {
    tcp::FrameHeader header = tcp::make_header(type, tag, {});
    header.sender = static_cast<std::uint32_t>(sender);
    header.payload_bytes = static_cast<std::uint32_t>(payload);
    header.message_bytes = payload;
    return header;
  }

  bool send_hello(const tcp::Hello& hello) {
    return send(frame(tcp::FrameType::kHello, static_cast<int>(hello.sender), sizeof(hello)),
                std::as_bytes(std::span(&hello, 1)));
  }

  // Becomes `sender` in the eyes of `rank`.
  void shake_hands(int sender, int rank, int ranks) {
    ASSERT_TRUE(send_hello(hello(sender, rank, ranks)));
    ASSERT_EQ(tcp::frame_type(receive_header()), tcp::FrameType::kWelcome);
    ASSERT_EQ(receive(sizeof(tcp::Hello)).size(), sizeof(tcp::Hello));
    ASSERT_TRUE(send(frame(tcp::FrameType::kStart, sender, 0)));
    world_->turns(5);
  }

  void close() { fd_.reset(); }

 private:
  TcpWorld* world_;
  Fd fd_;
};

}  // namespace isthmus::tcp_test
