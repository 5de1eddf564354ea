// Goal: interfaces are told as the kernel has them, those that must not carry traffic to other
// hosts are left out unless named, and listening ports stay within their range. Method: this host's
// own interfaces, made-up ones, a made-up sysfs, and busy ports.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/transport/tcp_world.h"
#include "transport/tcp/interfaces.h"
#include "transport/tcp/sockets.h"

namespace isthmus::tcp_test {
namespace {

namespace fs = std::filesystem;
using tcp::Interface;
using tcp::InterfaceFilter;

Interface interface_of(const char* name, Interface::Kind kind) {
  Interface out;
  out.name = name;
  out.kind = kind;
  out.up = true;
  out.running = true;
  return out;
}

TEST(TcpInterfaces, LoopbackIsKnownAndNoLinkLocalAddressIsListed) {
  const Result<std::vector<Interface>> all = tcp::probe_interfaces();
  ASSERT_TRUE(all.ok()) << all.error().message;
  std::set<std::string> names;
  for (const Interface& each : *all) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name << " is listed twice";
    EXPECT_EQ(each.name.find(':'), std::string::npos);
    for (const tcp::IpAddress& address : each.addresses) {
      EXPECT_FALSE(address.family == 6 && address.ip[0] == 0xfe && (address.ip[1] & 0xc0) == 0x80);
    }
  }
  const auto lo = std::find_if(all->begin(), all->end(), [](const Interface& each) {
    return each.kind == Interface::Kind::kLoopback;
  });
  ASSERT_NE(lo, all->end());
  EXPECT_TRUE(lo->up && lo->pci_path.empty());
  EXPECT_TRUE(std::any_of(lo->addresses.begin(), lo->addresses.end(),
                          [](const auto& each) { return to_string(each) == "127.0.0.1"; }));
}

// What no test machine is sure to have: a device, its speed, a bridge.
TEST(TcpInterfaces, SysfsTellsSpeedPlaceAndKind) {
  const Result<std::vector<Interface>> all = tcp::probe_interfaces();
  ASSERT_TRUE(all.ok());
  const auto other = std::find_if(all->begin(), all->end(), [](const Interface& each) {
    return each.kind != Interface::Kind::kLoopback &&
           each.kind != Interface::Kind::kContainerBridge;
  });
  if (other == all->end()) {
    GTEST_SKIP() << "this host has loopback alone";
  }
  const fs::path root = fs::temp_directory_path() / ("isthmus-sysfs-" + std::to_string(::getpid()));
  const fs::path entry = root / "net" / other->name;
  const fs::path device = root / "devices" / "pci0000:00" / "0000:00:05.0";
  fs::create_directories(entry);
  fs::create_directories(device);
  const auto probe = [&] {
    const Result<std::vector<Interface>> again = tcp::probe_interfaces((root / "net").string());
    EXPECT_TRUE(again.ok());
    return *std::find_if(again->begin(), again->end(),
                         [&](const Interface& each) { return each.name == other->name; });
  };
  EXPECT_EQ(probe().kind, Interface::Kind::kVirtual);
  EXPECT_EQ(probe().speed_mbps, 0);
  std::ofstream(entry / "speed") << "-1\n";
  EXPECT_EQ(probe().speed_mbps, 0);
  std::ofstream(entry / "speed") << "25000\n";
  EXPECT_EQ(probe().speed_mbps, 25000);
  fs::create_directory_symlink(device, entry / "device");
  EXPECT_EQ(probe().kind, Interface::Kind::kPhysical);
  EXPECT_EQ(probe().pci_path, fs::canonical(device).string());
  fs::create_directory(entry / "bridge");
  EXPECT_EQ(probe().kind, Interface::Kind::kBridge);
  fs::remove_all(root);
}

TEST(TcpInterfaces, BridgesAndDeadPortsServeOnlyWhenNamed) {
  const Interface eth = interface_of("eth0", Interface::Kind::kPhysical);
  const Interface docker = interface_of("docker0", Interface::Kind::kContainerBridge);
  const Interface bridge = interface_of("br0", Interface::Kind::kBridge);
  Interface dead = interface_of("eno2", Interface::Kind::kPhysical);
  dead.running = false;
  Interface down = dead;
  down.up = false;
  for (const char* text : {"", "^docker0", "^wlan0"}) {
    const InterfaceFilter filter = InterfaceFilter::parse(text);
    EXPECT_EQ(tcp::unfit(eth, filter), nullptr) << text;
    EXPECT_EQ(tcp::unfit(bridge, filter), nullptr) << text;
    EXPECT_NE(tcp::unfit(docker, filter), nullptr) << text;
    EXPECT_NE(tcp::unfit(dead, filter), nullptr) << text;
    EXPECT_NE(tcp::unfit(down, filter), nullptr) << text;
  }
  const InterfaceFilter named = InterfaceFilter::parse("docker*,eno2");
  EXPECT_NE(tcp::unfit(eth, named), nullptr);
  EXPECT_EQ(tcp::unfit(docker, named), nullptr);
  EXPECT_EQ(tcp::unfit(dead, named), nullptr);
  EXPECT_NE(tcp::unfit(down, named), nullptr);
}

TEST(TcpInterfaces, RoutesAreAskedFor) {
  const std::vector<tcp::IpAddress> routed = tcp::routed_addresses("127.0.0.1");
  ASSERT_EQ(routed.size(), 1U);
  EXPECT_EQ(to_string(routed[0]), "127.0.0.1");
  EXPECT_TRUE(tcp::routed_addresses("").empty());
}

TEST(TcpPorts, RangesAreReadOrRefused) {
  const Result<tcp::PortRange> range = tcp::PortRange::parse("20000-20100");
  ASSERT_TRUE(range.ok());
  EXPECT_EQ(range->first, 20000);
  EXPECT_EQ(range->last, 20100);
  EXPECT_EQ(tcp::PortRange::parse("")->first, 0);
  EXPECT_EQ(tcp::PortRange::parse("7-7")->last, 7);
  for (const char* text : {"7", "-", "7-", "-7", "8-7", "0-7", "7-65536", "7-8x", "a-b", "7-8-9"}) {
    const Result<tcp::PortRange> bad = tcp::PortRange::parse(text);
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_EQ(bad.error().code, Code::kInvalidArgument);
    EXPECT_NE(bad.error().message.find(text), std::string::npos);
  }
}

// A port that is free now, for ranges of a test; the next ones mostly are too.
std::uint16_t free_port() {
  const Result<tcp::Listener> listener = tcp::open_listener();
  EXPECT_TRUE(listener.ok());
  return std::min<std::uint16_t>(listener->port, 65000);
}

TEST(TcpPorts, BusyPortsAreSkippedAndAFullRangeIsAnError) {
  const std::uint16_t first = free_port();
  const tcp::PortRange range{first, static_cast<std::uint16_t>(first + 7)};
  std::vector<tcp::Listener> open;
  for (unsigned i = 0; i < 8; ++i) {
    Result<tcp::Listener> listener = tcp::open_listener(range, 1000);
    if (!listener.ok()) {
      break;  // somebody else had one of the eight
    }
    EXPECT_TRUE(listener->port >= range.first && listener->port <= range.last);
    for (const tcp::Listener& other : open) {
      EXPECT_NE(other.port, listener->port);
    }
    open.push_back(std::move(*listener));
  }
  EXPECT_GE(open.size(), 2U);
  const Result<tcp::Listener> none = tcp::open_listener(range, 3);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::kResource);
  EXPECT_NE(none.error().message.find("None of the 8 ports"), std::string::npos);
}

TEST(TcpPorts, RanksListenWithinTheRange) {
  const std::uint16_t first = free_port();
  const std::string text = std::to_string(first) + "-" + std::to_string(first + 15);
  TcpWorld world(3, [&](TcpOptions* options) { options->ports = text; });
  for (int rank = 0; rank < 3; ++rank) {
    const Result<tcp::Address> address = tcp::decode_address(world.at(rank).address());
    ASSERT_TRUE(address.ok());
    for (const tcp::Candidate& candidate : address->candidates) {
      EXPECT_TRUE(candidate.port >= first && candidate.port <= first + 15);
    }
  }
  world.exchange(0, 1);
  world.exchange(2, 1);
}

TEST(TcpPorts, TheDescriptorLimitIsRaisedAsFarAsItGoes) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto soft = [] {
    rlimit now{};
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
    return now.rlim_cur;
  };
  tcp::raise_descriptor_limit(100);
  EXPECT_EQ(soft(), low.rlim_cur);
  tcp::raise_descriptor_limit(300);
  EXPECT_EQ(soft(), std::min<rlim_t>(300, before.rlim_max));
  tcp::raise_descriptor_limit(~std::size_t{0} >> 2);
  EXPECT_EQ(soft(), before.rlim_max);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// Loopback leads nowhere but to this host: a peer elsewhere that has nothing else is told at once.
TEST(TcpInterfaces, APeerWithLoopbackAloneIsAnErrorThatSaysSo) {
  TcpWorld world(2);
  tcp::Address address = *tcp::decode_address(world.at(1).address());
  ++address.host;
  std::erase_if(address.candidates, [](const tcp::Candidate& each) { return !each.loopback; });
  ASSERT_TRUE(world.at(0).set_address(1, tcp::encode_address(address)).ok());
  std::array<std::byte, 10> out{};
  world.send(0, 1, {1, 1}, out, 1);
  ASSERT_TRUE(world.wait_for(0, 1));
  const Result<Endpoint::Post> later = world.at(0).endpoint(1).post_send({2, 2}, {}, out, {});
  ASSERT_FALSE(later.ok());
  EXPECT_NE(later.error().message.find("only loopback was found"), std::string::npos);
  EXPECT_NE(later.error().message.find("ISTHMUS_IFACE"), std::string::npos);
}

}  // namespace
}  // namespace isthmus::tcp_test
