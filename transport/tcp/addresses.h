#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

#include "base/result.h"

namespace isthmus::tcp {

// One way to reach a rank.
struct Candidate {
  std::uint8_t family = 4;  // 4 or 6
  std::uint8_t prefix = 0;  // bits of the network part
  bool loopback = false;    // works on the same host only
  std::uint16_t port = 0;
  std::array<std::uint8_t, 16> ip{};  // network order; IPv4 uses the first four

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

// The interfaces to use: "" all that are up, "eth0,ib0" these, "^docker0" all but these. Also
// accepts a prefix ending in '*'.
struct InterfaceFilter {
  std::vector<std::string> names;
  bool exclude = false;

  static InterfaceFilter parse(std::string_view text);
  bool allows(std::string_view name) const;
};

// The usable addresses of this host: interfaces that are up and allowed, the one that routes to
// `route_target` first (a host name or address; "" none; resolving it may ask the name service),
// container bridges late, loopback last. Never 127.0.1.1 or an IPv6 link-local address. With a
// filter that no interface passes: kInvalidArgument, naming those that exist.
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

// "192.0.2.2:4711" or "[fd00::2]:4711".
std::string to_string(const Candidate& candidate);
std::string to_string(const SocketAddress& address);

}  // namespace isthmus::tcp
