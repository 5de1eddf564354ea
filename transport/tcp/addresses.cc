#include "transport/tcp/addresses.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"

namespace isthmus::tcp {
namespace {

constexpr std::uint8_t kAddressVersion = 2;
constexpr std::size_t kFixedBytes = 10;      // version, count, host
constexpr std::size_t kCandidateBytes = 22;  // family, prefix, loopback, interface, port, ip

// An address of an interface that may be used.
struct Usable {
  const Interface* interface = nullptr;
  Candidate candidate;
  bool routed = false;  // it is the one that routes to the target
};

std::uint64_t host_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;

  struct stat netns {};

  const bool known = ::stat("/proc/self/ns/net", &netns) == 0;
  const std::uint64_t hash = hash_combine(hash_bytes(boot_id), known ? netns.st_ino : 0);
  return hash == 0 ? 1 : hash;
}

// Lower is better.
int rank_of(const Usable& usable) {
  if (usable.candidate.loopback) {
    return 8;
  }
  const bool bridge = usable.interface->kind == Interface::Kind::kBridge ||
                      usable.interface->kind == Interface::Kind::kContainerBridge;
  return (usable.routed ? 0 : 2) + (bridge && !usable.routed ? 4 : 0) +
         (usable.candidate.family == 4 ? 0 : 1);
}

// 127.0.1.1 and other loopback aliases mislead; one of each family is enough.
bool is_alias(const IpAddress& address) {
  return address.loopback && address.family == 4 &&
         address.ip != std::array<std::uint8_t, 16>{127, 0, 0, 1};
}

// Of all interfaces those addresses that may be used. Loopback stays whatever the filter says: it
// never leaves the host.
std::vector<Usable> usable_addresses(const std::vector<Interface>& all,
                                     const InterfaceFilter& filter, bool ipv6) {
  std::vector<Usable> out;
  std::uint8_t number = 0;
  for (const Interface& interface : all) {
    const bool loopback = interface.kind == Interface::Kind::kLoopback;
    if (const char* why = loopback ? nullptr : unfit(interface, filter)) {
      log(LogLevel::kDebug, "tcp", "interface {} is not used: {}", interface.name, why);
      continue;
    }
    for (const IpAddress& address : interface.addresses) {
      if (interface.up && (ipv6 || address.family == 4) && !is_alias(address)) {
        Candidate candidate;
        static_cast<IpAddress&>(candidate) = address;
        candidate.interface = number;
        out.push_back({&interface, candidate});
      }
    }
    ++number;
  }
  return out;
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
    at[3] = std::byte{candidate.interface};
    std::memcpy(at + 4, &candidate.port, 2);
    std::memcpy(at + 6, candidate.ip.data(), 16);
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
    candidate.interface = std::to_integer<std::uint8_t>(at[3]);
    std::memcpy(&candidate.port, at + 4, 2);
    std::memcpy(candidate.ip.data(), at + 6, 16);
    if ((candidate.family != 4 && candidate.family != 6) || candidate.port == 0) {
      return broken(fmt::format("candidate {} has family {} and port {}", i, candidate.family,
                                candidate.port));
    }
    out.candidates.push_back(candidate);
  }
  return out;
}

Result<Address> local_address(const InterfaceFilter& filter, const std::string& route_target,
                              std::uint16_t port, bool ipv6) {
  ISTHMUS_ASSIGN(const std::vector<Interface> all, probe_interfaces());
  std::vector<std::string> names;
  bool passed = filter.names.empty() || filter.exclude;
  for (const Interface& interface : all) {
    if (interface.up) {
      names.push_back(interface.name);
      passed |= filter.allows(interface.name);
    }
  }
  if (!passed) {
    return Error{
        .code = Code::kInvalidArgument,
        .message = fmt::format("ISTHMUS_IFACE asks for {}, but the interfaces that are up are {}.",
                               fmt::join(filter.names, ", "), fmt::join(names, ", "))};
  }
  std::vector<Usable> found = usable_addresses(all, filter, ipv6);
  for (const IpAddress& routed : routed_addresses(route_target)) {
    for (Usable& usable : found) {
      usable.routed |= usable.candidate.family == routed.family && usable.candidate.ip == routed.ip;
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Usable& a, const Usable& b) { return rank_of(a) < rank_of(b); });
  if (found.empty()) {
    return Error{.code = Code::kResource,
                 .message = "No network interface with an IP address is up, not even loopback."};
  }
  Address out;
  out.host = host_identity();
  for (Usable& usable : found) {
    usable.candidate.port = port;
    if (out.candidates.size() < kCandidatesMax) {
      out.candidates.push_back(usable.candidate);
      log(LogLevel::kInfo, "tcp", "listens at {} of {} ({}, {} Mbit/s{})",
          to_string(usable.candidate), usable.interface->name, kind_name(usable.interface->kind),
          usable.interface->speed_mbps, usable.routed ? ", routes to the rendezvous" : "");
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

IpAddress ip_of(const SocketAddress& address) {
  IpAddress out;
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address.storage, sizeof(in));
    std::memcpy(out.ip.data(), &in.sin_addr, 4);
  } else {
    sockaddr_in6 in{};
    std::memcpy(&in, &address.storage, sizeof(in));
    const bool four = IN6_IS_ADDR_V4MAPPED(&in.sin6_addr);
    out.family = four ? 4 : 6;
    std::memcpy(out.ip.data(), &in.sin6_addr.s6_addr[four ? 12 : 0], four ? 4 : 16);
  }
  out.loopback = out.family == 4 ? out.ip[0] == 127
                                 : out.ip == std::array<std::uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0,
                                                                          0, 0, 0, 0, 0, 0, 0, 1};
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
