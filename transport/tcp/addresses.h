#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "base/result.h"
#include "transport/tcp/interfaces.h"

namespace isthmus::tcp {

// One way to reach a rank.
struct Candidate : IpAddress {
  std::uint16_t port = 0;
  std::uint8_t interface = 0;  // addresses of one interface of a rank have the same number

  bool operator==(const Candidate&) const = default;
};

// All ways to reach a rank, best first, loopback last.
struct Address {
  std::uint64_t host = 0;  // hash of boot id and network namespace: equal where loopback is shared
  std::vector<Candidate> candidates;
};

// A host with more interfaces than this lists the first ones.
inline constexpr std::size_t kCandidatesMax = 32;

std::vector<std::byte> encode_address(const Address& address);
Result<Address> decode_address(std::span<const std::byte> bytes);

// The usable addresses of this host: interfaces that are up, have a link and are allowed, the one
// that routes to `route_target` first (a host name or address; "" none; resolving it may ask the
// name service), bridges late, loopback last. Never 127.0.1.1, an IPv6 link-local address or,
// unless it is asked for by name, a bridge of containers. With a filter that no interface passes:
// kInvalidArgument, naming those that exist. What is taken and left out is logged (info, debug).
Result<Address> local_address(const InterfaceFilter& filter, const std::string& route_target,
                              std::uint16_t port, bool ipv6);

// The peer's candidates in the order to try them from here: loopback first on the same host and
// left out elsewhere, then those in a subnet of ours, then the rest.
std::vector<Candidate> connect_order(const Address& ours, const Address& theirs);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

SocketAddress socket_address(const Candidate& candidate);

// Without prefix; IPv4 that came through a dual-stack socket is IPv4.
IpAddress ip_of(const SocketAddress& address);

// "192.0.2.2:4711" or "[fd00::2]:4711".
std::string to_string(const Candidate& candidate);
std::string to_string(const SocketAddress& address);

}  // namespace isthmus::tcp
