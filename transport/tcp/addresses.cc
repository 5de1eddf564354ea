#include "transport/tcp/addresses.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/hash.h"
#include "base/log.h"

namespace isthmus::tcp {
namespace {

constexpr std::uint8_t kAddressVersion = 1;
constexpr std::size_t kFixedBytes = 10;      // version, count, host
constexpr std::size_t kCandidateBytes = 21;  // family, prefix, loopback, port, ip

struct Interface {
  std::string name;
  Candidate candidate;
  bool routed = false;  // its address is the one that routes to the target
};

std::uint64_t host_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;

  struct stat netns {};

  const bool known = ::stat("/proc/self/ns/net", &netns) == 0;
  const std::uint64_t hash = hash_combine(hash_bytes(boot_id), known ? netns.st_ino : 0);
  return hash == 0 ? 1 : hash;
}

std::uint8_t prefix_bits(const std::uint8_t* mask, std::size_t bytes) {
  int bits = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    bits += __builtin_popcount(mask[i]);
  }
  return static_cast<std::uint8_t>(bits);
}

std::optional<Candidate> candidate_of(const sockaddr* address, const sockaddr* netmask) {
  Candidate out;
  if (address->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, address, sizeof(in));
    std::memcpy(out.ip.data(), &in.sin_addr, 4);
    out.loopback = out.ip[0] == 127;
    sockaddr_in mask{};
    if (netmask != nullptr) {
      std::memcpy(&mask, netmask, sizeof(mask));
    }
    std::array<std::uint8_t, 4> bits{};
    std::memcpy(bits.data(), &mask.sin_addr, 4);
    out.prefix = prefix_bits(bits.data(), bits.size());
    return out;
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, address, sizeof(in));
    if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr)) {
      return std::nullopt;
    }
    out.family = 6;
    std::memcpy(out.ip.data(), &in.sin6_addr, 16);
    out.loopback = IN6_IS_ADDR_LOOPBACK(&in.sin6_addr);
    sockaddr_in6 mask{};
    if (netmask != nullptr) {
      std::memcpy(&mask, netmask, sizeof(mask));
    }
    std::array<std::uint8_t, 16> bits{};
    std::memcpy(bits.data(), &mask.sin6_addr, 16);
    out.prefix = prefix_bits(bits.data(), bits.size());
    return out;
  }
  return std::nullopt;
}

Result<std::vector<Interface>> list_interfaces(bool ipv6) {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) {
    return system_error(Code::kIo, errno, "Cannot list the network interfaces");
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, ::freeifaddrs);
  std::vector<Interface> out;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const std::optional<Candidate> candidate = candidate_of(entry->ifa_addr, entry->ifa_netmask);
    if (candidate && (ipv6 || candidate->family == 4)) {
      out.push_back({entry->ifa_name, *candidate});
    }
  }
  return out;
}

// Bridges of container and VM hosts: every host has the same address there.
bool is_bridge(std::string_view name) {
  return name.starts_with("docker") || name.starts_with("virbr") || name.starts_with("br-") ||
         name.starts_with("cni") || name.starts_with("lxc");
}

// The address that this host would send from to reach the target; connect() of a UDP socket asks
// the routing table and sends nothing.
std::vector<Candidate> routed_addresses(const std::string& target) {
  std::vector<Candidate> out;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  if (target.empty() || ::getaddrinfo(target.c_str(), "9", &hints, &raw) != 0) {
    return out;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(raw, ::freeaddrinfo);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    const Fd probe(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    SocketAddress from;
    from.bytes = sizeof(from.storage);
    auto* address = reinterpret_cast<sockaddr*>(&from.storage);
    if (probe.valid() && ::connect(probe.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(probe.get(), address, &from.bytes) == 0) {
      if (const std::optional<Candidate> found = candidate_of(address, nullptr)) {
        out.push_back(*found);
      }
    }
  }
  return out;
}

// Lower is better.
int rank_of(const Interface& interface) {
  if (interface.candidate.loopback) {
    return 8;
  }
  return (interface.routed ? 0 : 2) + (is_bridge(interface.name) ? 4 : 0) +
         (interface.candidate.family == 4 ? 0 : 1);
}

bool same_subnet(const Candidate& a, const Candidate& b) {
  if (a.family != b.family || a.loopback || b.loopback) {
    return false;
  }
  const unsigned bits = std::min<unsigned>(a.prefix, a.family == 4 ? 32 : 128);
  for (unsigned bit = 0; bit < bits; ++bit) {
    const unsigned shift = 7 - bit % 8;
    if (((a.ip[bit / 8] >> shift) & 1) != ((b.ip[bit / 8] >> shift) & 1)) {
      return false;
    }
  }
  return bits > 0;
}

}  // namespace

std::vector<std::byte> encode_address(const Address& address) {
  const std::size_t count = std::min(address.candidates.size(), kCandidatesMax);
  std::vector<std::byte> out(kFixedBytes + count * kCandidateBytes);
  out[0] = std::byte{kAddressVersion};
  out[1] = static_cast<std::byte>(count);
  std::memcpy(&out[2], &address.host, 8);
  for (std::size_t i = 0; i < count; ++i) {
    const Candidate& candidate = address.candidates[i];
    std::byte* at = &out[kFixedBytes + i * kCandidateBytes];
    at[0] = std::byte{candidate.family};
    at[1] = std::byte{candidate.prefix};
    at[2] = static_cast<std::byte>(candidate.loopback);
    std::memcpy(at + 3, &candidate.port, 2);
    std::memcpy(at + 5, candidate.ip.data(), 16);
  }
  return out;
}

Result<Address> decode_address(std::span<const std::byte> bytes) {
  const auto broken = [&](std::string what) {
    return Error{
        .code = Code::kProtocol,
        .message = fmt::format("A TCP address of {} bytes is broken: {}.", bytes.size(), what)};
  };
  if (bytes.size() < kFixedBytes) {
    return broken("it is too short");
  }
  if (bytes[0] != std::byte{kAddressVersion}) {
    return broken(fmt::format("its version is {}, expected {}", std::to_integer<int>(bytes[0]),
                              kAddressVersion));
  }
  const auto count = std::to_integer<std::size_t>(bytes[1]);
  if (count == 0 || count > kCandidatesMax ||
      bytes.size() != kFixedBytes + count * kCandidateBytes) {
    return broken(fmt::format("it claims {} candidates", count));
  }
  Address out;
  std::memcpy(&out.host, &bytes[2], 8);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* at = &bytes[kFixedBytes + i * kCandidateBytes];
    Candidate candidate;
    candidate.family = std::to_integer<std::uint8_t>(at[0]);
    candidate.prefix = std::to_integer<std::uint8_t>(at[1]);
    candidate.loopback = at[2] != std::byte{0};
    std::memcpy(&candidate.port, at + 3, 2);
    std::memcpy(candidate.ip.data(), at + 5, 16);
    if ((candidate.family != 4 && candidate.family != 6) || candidate.port == 0) {
      return broken(fmt::format("candidate {} has family {} and port {}", i, candidate.family,
                                candidate.port));
    }
    out.candidates.push_back(candidate);
  }
  return out;
}

InterfaceFilter InterfaceFilter::parse(std::string_view text) {
  InterfaceFilter out;
  if (text.starts_with('^')) {
    out.exclude = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    if (!name.empty()) {
      out.names.emplace_back(name);
    }
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return out;
}

bool InterfaceFilter::allows(std::string_view name) const {
  if (names.empty()) {
    return true;
  }
  const bool listed = std::any_of(names.begin(), names.end(), [&](std::string_view pattern) {
    return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1))
                                  : name == pattern;
  });
  return listed != exclude;
}

Result<Address> local_address(const InterfaceFilter& filter, const std::string& route_target,
                              std::uint16_t port, bool ipv6) {
  ISTHMUS_ASSIGN(std::vector<Interface> found, list_interfaces(ipv6));
  std::vector<std::string> names;
  for (const Interface& interface : found) {
    if (std::find(names.begin(), names.end(), interface.name) == names.end()) {
      names.push_back(interface.name);
    }
  }
  // Loopback stays whatever the filter says: it never leaves the host.
  std::erase_if(found, [&](const Interface& interface) {
    return !interface.candidate.loopback && !filter.allows(interface.name);
  });
  if (!filter.names.empty() && !filter.exclude &&
      std::none_of(names.begin(), names.end(), [&](const auto& n) { return filter.allows(n); })) {
    return Error{
        .code = Code::kInvalidArgument,
        .message = fmt::format("ISTHMUS_IFACE asks for {}, but the interfaces that are up are {}.",
                               fmt::join(filter.names, ", "), fmt::join(names, ", "))};
  }
  // 127.0.1.1 and other loopback aliases mislead; one of each family is enough.
  std::erase_if(found, [](const Interface& interface) {
    const Candidate& c = interface.candidate;
    return c.loopback && c.family == 4 && c.ip != std::array<std::uint8_t, 16>{127, 0, 0, 1};
  });
  for (const Candidate& routed : routed_addresses(route_target)) {
    for (Interface& interface : found) {
      interface.routed |=
          interface.candidate.family == routed.family && interface.candidate.ip == routed.ip;
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Interface& a, const Interface& b) { return rank_of(a) < rank_of(b); });
  if (found.empty()) {
    return Error{.code = Code::kResource,
                 .message = "No network interface with an IP address is up, not even loopback."};
  }
  Address out;
  out.host = host_identity();
  for (Interface& interface : found) {
    interface.candidate.port = port;
    if (out.candidates.size() < kCandidatesMax) {
      out.candidates.push_back(interface.candidate);
    }
  }
  return out;
}

std::vector<Candidate> connect_order(const Address& ours, const Address& theirs) {
  const bool same_host = ours.host == theirs.host;
  const auto place = [&](const Candidate& candidate) {
    if (candidate.loopback) {
      return 0;
    }
    const bool near =
        std::any_of(ours.candidates.begin(), ours.candidates.end(),
                    [&](const Candidate& mine) { return same_subnet(mine, candidate); });
    return near ? 1 : 2;
  };
  std::vector<Candidate> out;
  for (const Candidate& candidate : theirs.candidates) {
    if (!candidate.loopback || same_host) {
      out.push_back(candidate);
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [&](const Candidate& a, const Candidate& b) { return place(a) < place(b); });
  return out;
}

SocketAddress socket_address(const Candidate& candidate) {
  SocketAddress out;
  if (candidate.family == 4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(candidate.port);
    std::memcpy(&in.sin_addr, candidate.ip.data(), 4);
    std::memcpy(&out.storage, &in, sizeof(in));
    out.bytes = sizeof(in);
    return out;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(candidate.port);
  std::memcpy(&in.sin6_addr, candidate.ip.data(), 16);
  std::memcpy(&out.storage, &in, sizeof(in));
  out.bytes = sizeof(in);
  return out;
}

std::string to_string(const Candidate& candidate) {
  return to_string(socket_address(candidate));
}

std::string to_string(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address.storage, sizeof(in));
    ::inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), ntohs(in.sin_port));
  }
  if (address.storage.ss_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &address.storage, sizeof(in));
    if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {  // IPv4 as a dual-stack listener sees it
      ::inet_ntop(AF_INET, &in.sin6_addr.s6_addr[12], text.data(), text.size());
      return fmt::format("{}:{}", text.data(), ntohs(in.sin6_port));
    }
    ::inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), ntohs(in.sin6_port));
  }
  return "an unknown address";
}

}  // namespace isthmus::tcp
