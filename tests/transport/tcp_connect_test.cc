// Goal: any two ranks get exactly one connection whoever calls first; deaths, goodbyes and
// unreachable peers end posts with the right code and are told once; addresses are listed and
// ordered as addresses.h says. Method: transports in one process, and pure functions.
#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

#include <fcntl.h>
#include <poll.h>

#include "tests/transport/tcp_raw_peer.h"
#include "tests/transport/tcp_world.h"
#include "transport/tcp/sockets.h"

namespace isthmus::tcp_test {
namespace {

TEST(TcpConnect, BothSidesAtOnce) {
  const std::uint64_t seed = 11;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    TcpWorld world(2);
    constexpr std::uint32_t kMessages = 5;
    const std::vector<std::byte> out = pattern(3000, 1);
    std::vector<std::vector<std::byte>> in(2 * kMessages, std::vector<std::byte>(out.size()));
    // Steps of either rank's loop between the posts, in random order: calls cross at all stages.
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      for (const int rank : {0, 1}) {
        world.send(rank, 1 - rank, {1, i}, out, 100 + i);
        world.recv(rank, 1 - rank, {1, i}, in[i + static_cast<std::size_t>(rank) * kMessages], i);
        for (std::uint64_t turns = random() % 3; turns > 0; --turns) {
          const int which = random() % 2 == 0 ? 0 : 1;
          world.at(which).poll(&world.events(which));
        }
      }
    }
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(world.wait_for(0, i) && world.wait_for(1, i));
    }
    world.turns(10);
    for (const int rank : {0, 1}) {
      EXPECT_TRUE(world.events(rank).dead.empty() && world.events(rank).notices.empty());
    }
    EXPECT_TRUE(std::all_of(in.begin(), in.end(), [&](const auto& each) { return each == out; }));
  }
}

// Two ranks that both only receive still meet, so that a death is seen.
TEST(TcpConnect, ReceiversMeetAndSeeADeath) {
  TcpWorld world(2);
  std::array<std::byte, 10> in{};
  std::array<std::byte, 10> other{};
  world.recv(0, 1, {1, 1}, in, 1);
  world.recv(1, 0, {1, 1}, other, 1);
  const std::int64_t until = monotonic_ns() + 200'000'000;
  world.run_until([&] { return monotonic_ns() > until; }, "200 ms");
  world.kill(1);
  ASSERT_TRUE(world.wait_for(0, 1));
  EXPECT_EQ(world.outcome(0, 1).code, Code::kPeerDead);
  EXPECT_EQ(world.events(0).dead, std::vector<int>{1});
}

TEST(TcpConnect, ADeadPeerThatWasNeverMetIsSeenSoon) {
  TcpWorld world(3);
  world.kill(1);
  std::array<std::byte, 10> in{};
  const std::int64_t start = monotonic_ns();
  world.send(0, 1, {1, 1}, in, 1);
  world.recv(2, 1, {1, 1}, in, 1);
  ASSERT_TRUE(world.wait_for(0, 1) && world.wait_for(2, 1));
  EXPECT_LT(monotonic_ns() - start, 2'000'000'000);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(world.outcome(rank, 1).code, Code::kPeerDead);
    EXPECT_EQ(world.events(rank).dead, std::vector<int>{1});
  }
  const Result<Endpoint::Post> later = world.at(0).endpoint(1).post_send({2, 2}, {}, in, {});
  ASSERT_FALSE(later.ok());
  EXPECT_NE(later.error().message.find("its process is gone"), std::string::npos);
}

TEST(TcpConnect, AnUnreachablePeerIsGivenUpAtTheDeadline) {
  TcpWorld world(2, [](TcpOptions* options) { options->connect_timeout_ms = 100; });
  // The address leads to a port of another program: this test.
  tcp::Address address = *tcp::decode_address(world.at(1).address());
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  tcp::Candidate candidate;
  candidate.ip = {127, 0, 0, 1};
  candidate.loopback = true;
  tcp::SocketAddress bound = tcp::socket_address(candidate);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&bound.storage), bound.bytes), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.bytes), 0);
  std::uint16_t port = 0;
  std::memcpy(&port, reinterpret_cast<const char*>(&bound.storage) + 2, 2);
  candidate.port = static_cast<std::uint16_t>(port << 8 | port >> 8);
  address.candidates = {candidate};
  ASSERT_TRUE(world.at(0).set_address(1, tcp::encode_address(address)).ok());
  std::array<std::byte, 10> in{};
  world.send(0, 1, {1, 1}, in, 1);
  // Another program: it accepts and closes, again and again.
  ASSERT_EQ(::fcntl(listener.get(), F_SETFL, O_NONBLOCK), 0);
  ASSERT_TRUE(world.run_until(
      [&] {
        const Fd caller(::accept(listener.get(), nullptr, nullptr));
        return world.completed(0, 1);
      },
      "the end of the attempts"));
  EXPECT_EQ(world.outcome(0, 1).code, Code::kTimeout);
  const Result<Endpoint::Post> later = world.at(0).endpoint(1).post_send({2, 2}, {}, in, {});
  ASSERT_FALSE(later.ok());
  EXPECT_NE(later.error().message.find("could not be reached"), std::string::npos)
      << later.error().message;
}

TEST(TcpEnd, DeathInTheMiddleOfBulk) {
  for (int turns = 0; turns < 40; turns += 3) {
    SCOPED_TRACE(turns);
    TcpWorld world(2);
    const std::vector<std::byte> out(std::size_t{8} << 20);
    std::vector<std::byte> in(out.size());
    std::array<std::byte, 5> small{};
    world.exchange(0, 1);
    world.recv(1, 0, {1, 1}, in, 1);
    world.send(0, 1, {1, 1}, out, 1);
    world.recv(0, 1, {1, 2}, small, 2);
    world.turns(turns);
    const bool done = world.completed(0, 1);
    world.kill(1);
    ASSERT_TRUE(world.wait_for(0, 2));
    EXPECT_EQ(world.outcome(0, 2).code, Code::kPeerDead);
    EXPECT_TRUE(done || world.completed(0, 1));
    EXPECT_EQ(world.events(0).dead, std::vector<int>{1});
  }
}

// What arrived before the sender left can be received after it; nothing is told twice.
TEST(TcpEnd, GoodbyeIsNoDeath) {
  TcpWorld world(2);
  world.exchange(0, 1);
  const std::vector<std::byte> out = pattern(700, 3);
  std::vector<std::byte> in(out.size());
  std::array<std::byte, 9> other{};
  EXPECT_EQ(world.send(0, 1, {1, 1}, out, 1), Endpoint::Post::kDone);
  world.recv(1, 0, {5, 5}, other, 5);
  world.at(0).shutdown();
  ASSERT_TRUE(world.wait_for(1, 5));
  EXPECT_TRUE(world.outcome(1, 5).failed);
  world.turns(20);
  ASSERT_EQ(world.events(1).notices.size(), 1U);
  EXPECT_EQ(world.events(1).notices[0].kind, Notice::Kind::kGoodbye);
  EXPECT_EQ(world.events(1).notices[0].from, 0);
  EXPECT_TRUE(world.events(1).dead.empty());
  world.recv(1, 0, {1, 1}, in, 1);
  ASSERT_TRUE(world.wait_for(1, 1));
  EXPECT_FALSE(world.outcome(1, 1).failed);
  EXPECT_EQ(in, out);
  const Result<Endpoint::Post> later = world.at(1).endpoint(0).post_send({2, 2}, {}, in, {});
  ASSERT_FALSE(later.ok());
  EXPECT_NE(later.error().message.find("left the group"), std::string::npos);
}

TEST(TcpEnd, NoticesBeforeTheConnection) {
  TcpWorld world(2);
  Notice notice;
  notice.kind = Notice::Kind::kAborted;
  notice.group = 5;
  notice.text = "stop";
  world.at(0).notify(1, notice);
  ASSERT_TRUE(world.run_until([&] { return !world.events(1).notices.empty(); }, "the notice"));
  EXPECT_EQ(world.events(1).notices[0].text, "stop");
  EXPECT_EQ(world.events(1).notices[0].from, 0);
}

// The descriptor wakes a sleeper for connections, data and deaths, and is quiet otherwise.
TEST(TcpEnd, DescriptorsSleepAndWake) {
  TcpWorld world(2);
  world.exchange(0, 1);
  std::vector<int> fds;
  world.at(1).wait_descriptors(&fds);
  ASSERT_EQ(fds.size(), 1U);
  pollfd watch{fds[0], POLLIN, 0};
  while (world.turn()) {
  }
  Events events;
  for (int i = 0; i < 20; ++i) {  // an event may be left that was served without epoll
    world.at(1).poll(&events);
  }
  EXPECT_EQ(::poll(&watch, 1, 0), 0) << "readable although nothing is to be done";
  const std::array<std::byte, 8> out{};
  world.send(0, 1, {1, 1}, out, 1);
  EXPECT_EQ(::poll(&watch, 1, 5000), 1);
  world.turns(20);
  world.kill(0);
  EXPECT_EQ(::poll(&watch, 1, 5000), 1);
}

TEST(TcpAddresses, RoundTripAndBounds) {
  const Result<tcp::Address> local =
      tcp::local_address(tcp::InterfaceFilter::parse(""), "127.0.0.1", 4711, true);
  ASSERT_TRUE(local.ok());
  const std::vector<std::byte> bytes = tcp::encode_address(*local);
  const Result<tcp::Address> back = tcp::decode_address(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->host, local->host);
  EXPECT_EQ(back->candidates, local->candidates);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(tcp::decode_address(std::span(bytes).first(cut)).ok()) << cut;
  }
  bool loopback = false;
  for (const tcp::Candidate& candidate : local->candidates) {
    EXPECT_EQ(candidate.port, 4711);
    EXPECT_TRUE(!loopback || candidate.loopback) << "loopback is not last";
    loopback |= candidate.loopback;
    EXPECT_FALSE(candidate.family == 4 && candidate.ip[0] == 127 && candidate.ip[2] == 1);
  }
}

TEST(TcpAddresses, Filters) {
  const tcp::InterfaceFilter some = tcp::InterfaceFilter::parse("eth0,ib*");
  EXPECT_TRUE(some.allows("eth0") && some.allows("ib3") && !some.allows("eth1"));
  const tcp::InterfaceFilter others = tcp::InterfaceFilter::parse("^docker0,virbr*");
  EXPECT_TRUE(others.allows("eth0") && !others.allows("docker0") && !others.allows("virbr1"));
  EXPECT_TRUE(tcp::InterfaceFilter::parse("").allows("anything"));
  const Result<tcp::Address> none =
      tcp::local_address(tcp::InterfaceFilter::parse("nosuch0"), "", 1, true);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::kInvalidArgument);
  EXPECT_NE(none.error().message.find("nosuch0"), std::string::npos);
  EXPECT_NE(none.error().message.find("lo"), std::string::npos);
}

tcp::Candidate candidate(std::array<std::uint8_t, 4> ip, std::uint8_t prefix) {
  tcp::Candidate out;
  std::copy(ip.begin(), ip.end(), out.ip.begin());
  out.prefix = prefix;
  out.loopback = ip[0] == 127;
  out.port = 1;
  return out;
}

TEST(TcpAddresses, ConnectOrder) {
  tcp::Address ours;
  ours.host = 1;
  ours.candidates = {candidate({10, 1, 2, 3}, 24), candidate({127, 0, 0, 1}, 8)};
  tcp::Address theirs;
  theirs.host = 2;
  const tcp::Candidate far = candidate({192, 168, 1, 1}, 24);
  const tcp::Candidate near = candidate({10, 1, 2, 200}, 24);
  const tcp::Candidate loopback = candidate({127, 0, 0, 1}, 8);
  theirs.candidates = {far, near, loopback};
  EXPECT_EQ(tcp::connect_order(ours, theirs), (std::vector<tcp::Candidate>{near, far}));
  theirs.host = 1;
  EXPECT_EQ(tcp::connect_order(ours, theirs), (std::vector<tcp::Candidate>{loopback, near, far}));
  EXPECT_EQ(tcp::to_string(far), "192.168.1.1:1");
}

TEST(TcpAddresses, SixWorksWhereThereIsSix) {
  TcpWorld world(2);
  tcp::Address address = *tcp::decode_address(world.at(1).address());
  std::erase_if(address.candidates, [](const tcp::Candidate& c) { return c.family == 4; });
  if (address.candidates.empty()) {
    GTEST_SKIP() << "this host has no IPv6";
  }
  ASSERT_TRUE(world.at(0).set_address(1, tcp::encode_address(address)).ok());
  const std::vector<std::byte> out = pattern(100, 1);
  std::vector<std::byte> in(100);
  world.send(0, 1, {1, 1}, out, 1);
  world.recv(1, 0, {1, 1}, in, 1);
  ASSERT_TRUE(world.wait_for(1, 1));
  EXPECT_EQ(in, out);
}

TEST(TcpSockets, CongestionControlIsNotTheSlowOne) {
  const Result<tcp::Listener> listener = tcp::open_listener();
  ASSERT_TRUE(listener.ok());
  tcp::tune_connection(listener->fd);
  const std::string name = tcp::congestion_control(listener->fd);
  EXPECT_TRUE(name == "cubic" || name == "reno") << name;
}

}  // namespace
}  // namespace isthmus::tcp_test
