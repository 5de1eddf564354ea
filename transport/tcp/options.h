#pragma once

#include <cstdint>
#include <string>

namespace isthmus {

// What a TcpTransport is told at its creation; it reads no environment itself.
struct TcpOptions {
  int rank = 0;
  int size = 1;
  std::uint64_t incarnation = 0;  // nonce of this run of the job; connections of others are dropped
  std::uint64_t config = 0;       // hash of what all ranks must agree on, compared at the handshake
  std::string interfaces;         // ISTHMUS_IFACE: "", "eth0,ib0" or "^docker0"
  std::string ports;              // ISTHMUS_PORT_RANGE: "" any, or "20000-20100"
  std::string route_target;       // host of the rendezvous: the interface that reaches it is first
  int flows = 1;                  // ISTHMUS_FLOWS: connections on each rail of a pair
  std::int64_t connect_timeout_ms = 60'000;  // for reaching a peer's machine
  // How long a chunk waits at most while another lane has one of higher priority; a lane that has
  // written none for as long is not waited for.
  std::int64_t yield_ms = 20;
  bool checksums = false;  // ISTHMUS_CRC
};

}  // namespace isthmus
