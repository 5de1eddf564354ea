#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace isthmus::store {

// Listening sockets for a store that clients reach under `host`; non-blocking. Port 0 is any free
// one; *port becomes the port in use. A port in use is an error that says so.
Result<std::vector<Fd>> listen_for(const std::string& host, std::uint16_t* port);

// Connects to whatever address of `host` answers, again and again until the deadline: the server
// may not have started, its name may not be known yet. Resolving blocks for as long as the system's
// resolver does. The socket is non-blocking.
Result<Fd> connect_to(const std::string& host, std::uint16_t port, Deadline deadline);

// Waits until the descriptor is ready for `events` (POLLIN, POLLOUT). False at the deadline.
Result<bool> wait_for(const Fd& fd, short events, Deadline deadline);

// "host:port", or "[host]:port" where the host holds colons.
std::string endpoint_text(const std::string& host, std::uint16_t port);

}  // namespace isthmus::store
