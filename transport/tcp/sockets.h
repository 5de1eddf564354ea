#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "transport/tcp/addresses.h"

namespace isthmus::tcp {

// All sockets are non-blocking and close-on-exec.

struct Listener {
  Fd fd;
  std::uint16_t port = 0;
  bool ipv6 = false;  // dual stack; false: the host has no IPv6 and this listens on IPv4 alone
};

// Ports to listen at, both ends included; first 0: any free one.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;

  // "", or "20000-20100".
  static Result<PortRange> parse(std::string_view text);
};

// Takes the first free port of the range, beginning at the one that `seed` names, so that ranks of
// a node seldom ask for the same one. A port found is held from then on.
Result<Listener> open_listener(PortRange range = {}, unsigned seed = 0);

// Raises the soft limit of open descriptors, up to the hard one, when it is below `needed`. A limit
// that stays below is logged: most ranks never talk to all others.
void raise_descriptor_limit(std::size_t needed);

// The next connection in the listener's queue; an invalid Fd when there is none now.
Result<Fd> accept_one(const Fd& listener);

// Begins to connect; EPOLLOUT tells the end, finish_connect() the outcome.
// From that address of ours when `from` is not null.
Result<Fd> start_connect(const Candidate& candidate, const Candidate* from = nullptr);

// 0 when connected, else the errno of the failure. A socket that met itself (both ends are the same
// ephemeral port of a listener that is gone) counts as refused.
int finish_connect(const Fd& fd);

// Options of a connection in use: no delay, keep-alive, congestion control. Failures are logged
// at debug level: none of them stops data.
void tune_connection(const Fd& fd);

// For limit_unsent(): so that of several flows a slow one does not take data that a fast one would
// have sent meanwhile; and so that little is ahead of what has priority.
inline constexpr int kUnsentOfFlows = 128 << 10;
inline constexpr int kUnsentOfPriorities = 32 << 10;

// Keeps what a socket holds and has not sent below so many bytes.
void limit_unsent(const Fd& fd, int bytes);

// Both ends of a connection; IPv4 as IPv4 also on a dual-stack socket.
struct Ends {
  IpAddress near;
  IpAddress far;
};

std::optional<Ends> ends_of(const Fd& fd);

// The congestion control in force ("cubic"), or "".
std::string congestion_control(const Fd& fd);

// Address of the other end, for texts.
std::string peer_name(const Fd& fd);

// How a connection with unacknowledged data stands, as a sentence part, when the peer's machine has
// been silent for so long that it must be gone: it answers neither retransmissions nor probes.
// TCP_USER_TIMEOUT is not used for this: it also ends connections to a live machine whose process
// does not read for that long (a stopped rank), which is not death.
std::optional<std::string> silent_peer(const Fd& fd);

// Whether data on this connection has been unanswered for 300 ms and was sent again in vain. A
// short limit, for connections that others stand in for: a machine that is alive answers, its
// process may stand still.
bool stalled(const Fd& fd);

}  // namespace isthmus::tcp
