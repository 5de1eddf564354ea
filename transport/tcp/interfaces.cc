#include "transport/tcp/interfaces.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/fd.h"

namespace isthmus::tcp {
namespace {

namespace fs = std::filesystem;

std::uint8_t prefix_bits(const std::uint8_t* mask, std::size_t bytes) {
  int bits = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    bits += __builtin_popcount(mask[i]);
  }
  return static_cast<std::uint8_t>(bits);
}

std::optional<IpAddress> four(const sockaddr* address, const sockaddr* netmask) {
  IpAddress out;
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

std::optional<IpAddress> six(const sockaddr* address, const sockaddr* netmask) {
  IpAddress out;
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

// Nothing for what is no IP address that another host could use.
std::optional<IpAddress> ip_address(const sockaddr* address, const sockaddr* netmask) {
  if (address == nullptr) {
    return std::nullopt;
  }
  if (address->sa_family == AF_INET) {
    return four(address, netmask);
  }
  return address->sa_family == AF_INET6 ? six(address, netmask) : std::nullopt;
}

bool is_container_bridge(std::string_view name) {
  constexpr std::array<std::string_view, 7> kPrefixes = {"docker", "virbr",  "br-",  "cni",
                                                         "lxc",    "podman", "vmnet"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

Interface::Kind kind_of(const Interface& interface, unsigned flags, const fs::path& entry) {
  std::error_code ignored;
  if ((flags & IFF_LOOPBACK) != 0) {
    return Interface::Kind::kLoopback;
  }
  if (is_container_bridge(interface.name)) {
    return Interface::Kind::kContainerBridge;
  }
  if (fs::exists(entry / "bridge", ignored)) {
    return Interface::Kind::kBridge;
  }
  return interface.pci_path.empty() ? Interface::Kind::kVirtual : Interface::Kind::kPhysical;
}

// What sysfs says; a host without sysfs has interfaces of unknown speed and place.
void read_sysfs(const fs::path& entry, unsigned flags, Interface* interface) {
  std::error_code failed;
  const fs::path device = fs::canonical(entry / "device", failed);
  if (!failed) {
    interface->pci_path = device.string();
  }
  // The file cannot be read while the port is down, and says -1 where nobody knows.
  int speed = 0;
  if (std::ifstream(entry / "speed") >> speed && speed > 0) {
    interface->speed_mbps = speed;
  }
  interface->kind = kind_of(*interface, flags, entry);
}

}  // namespace

Result<std::vector<Interface>> probe_interfaces(const std::string& sysfs) {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) {
    return system_error(Code::kIo, errno, "Cannot list the network interfaces");
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, ::freeifaddrs);
  std::vector<Interface> out;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    std::string_view name = entry->ifa_name;
    name = name.substr(0, name.find(':'));  // "eth0:1" is a second address of eth0
    auto found = std::find_if(out.begin(), out.end(),
                              [&](const Interface& each) { return each.name == name; });
    if (found == out.end()) {
      Interface interface;
      interface.name = name;
      interface.up = (entry->ifa_flags & IFF_UP) != 0;
      interface.running = (entry->ifa_flags & IFF_RUNNING) != 0;
      read_sysfs(fs::path(sysfs) / interface.name, entry->ifa_flags, &interface);
      found = out.insert(out.end(), std::move(interface));
    }
    if (const std::optional<IpAddress> ip = ip_address(entry->ifa_addr, entry->ifa_netmask)) {
      found->addresses.push_back(*ip);
    }
  }
  return out;
}

std::vector<IpAddress> routed_addresses(const std::string& target) {
  std::vector<IpAddress> out;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  if (target.empty() || ::getaddrinfo(target.c_str(), "9", &hints, &raw) != 0) {
    return out;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(raw, ::freeaddrinfo);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    // connect() of a UDP socket asks the routing table and sends nothing.
    const Fd probe(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage from{};
    socklen_t bytes = sizeof(from);
    auto* address = reinterpret_cast<sockaddr*>(&from);
    if (probe.valid() && ::connect(probe.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(probe.get(), address, &bytes) == 0) {
      if (const std::optional<IpAddress> found = ip_address(address, nullptr)) {
        out.push_back(*found);
      }
    }
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

const char* unfit(const Interface& interface, const InterfaceFilter& filter) {
  if (!interface.up) {
    return "it is down";
  }
  if (!filter.allows(interface.name)) {
    return "ISTHMUS_IFACE leaves it out";
  }
  if (filter.includes(interface.name)) {
    return nullptr;
  }
  if (interface.kind == Interface::Kind::kContainerBridge) {
    return "it is a bridge of containers";
  }
  return interface.running ? nullptr : "its port has no link";
}

bool same_subnet(const IpAddress& a, const IpAddress& b) {
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

std::string to_string(const IpAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(address.family == 4 ? AF_INET : AF_INET6, address.ip.data(), text.data(),
              text.size());
  return text.data();
}

std::string_view kind_name(Interface::Kind kind) {
  switch (kind) {
    case Interface::Kind::kPhysical:
      return "physical";
    case Interface::Kind::kVirtual:
      return "virtual";
    case Interface::Kind::kBridge:
      return "bridge";
    case Interface::Kind::kContainerBridge:
      return "container bridge";
    case Interface::Kind::kLoopback:
      return "loopback";
  }
  return "unknown";
}

}  // namespace isthmus::tcp
