#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace isthmus::tcp {

// What this host's network interfaces are, as the kernel tells: getifaddrs(), /sys/class/net and
// the routing table. Knows nothing of ranks, lanes or connections, so that whoever needs the same
// facts (a plug-in) can ask too. No state, callable from any thread; blocks for files of sysfs, and
// routed_addresses() for the name service.

struct IpAddress {
  std::uint8_t family = 4;            // 4 or 6
  std::uint8_t prefix = 0;            // bits of the network part
  bool loopback = false;              // works on the same host only
  std::array<std::uint8_t, 16> ip{};  // network order; IPv4 uses the first four

  bool operator==(const IpAddress&) const = default;
};

struct Interface {
  enum class Kind : std::uint8_t {
    kPhysical,         // has a device
    kVirtual,          // veth, tun, bond, vlan, ...
    kBridge,           // a bridge that may lead out of the host
    kContainerBridge,  // of docker, libvirt, cni, ...: all hosts have the same address there
    kLoopback,
  };

  std::string name;
  Kind kind = Kind::kVirtual;
  bool up = false;
  bool running = false;              // has a carrier
  int speed_mbps = 0;                // as the driver says; 0 when it does not
  std::string pci_path;              // real path of the device in sysfs, "" for none
  std::vector<IpAddress> addresses;  // no link-local ones
};

// All interfaces, in the kernel's order, up or not. `sysfs` is for tests.
Result<std::vector<Interface>> probe_interfaces(const std::string& sysfs = "/sys/class/net");

// The addresses that this host would send from to reach the target, a host name or an address;
// none when there is no route, or no target. Sends nothing to the target.
std::vector<IpAddress> routed_addresses(const std::string& target);

// The interfaces to use: "" all that serve, "eth0,ib0" these, "^docker0" all that serve but these.
// Also takes a prefix ending in '*'.
struct InterfaceFilter {
  std::vector<std::string> names;
  bool exclude = false;

  static InterfaceFilter parse(std::string_view text);
  bool allows(std::string_view name) const;

  // Whether the user asked for this one by name.
  bool includes(std::string_view name) const { return !names.empty() && !exclude && allows(name); }
};

// Why the interface must not carry traffic to other hosts, as the end of a sentence, or nullptr.
// Loopback is not asked for. What the user asked for by name serves when it is up.
const char* unfit(const Interface& interface, const InterfaceFilter& filter);

bool same_subnet(const IpAddress& a, const IpAddress& b);

// "192.0.2.2" or "fd00::2".
std::string to_string(const IpAddress& address);

std::string_view kind_name(Interface::Kind kind);

}  // namespace isthmus::tcp
