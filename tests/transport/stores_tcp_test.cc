// Goal: what is special to the TCP store: ports in use, late servers, address families, strangers,
// broken peers, many clients. Method: real sockets on loopback; every wait has a deadline.
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "transport/tcp_store.h"
#include "transport/tcp_store_sockets.h"
#include "transport/tcp_store_wire.h"

namespace isthmus {
namespace {

Deadline soon() {
  return Deadline::after_ms(30'000);
}

std::unique_ptr<TcpStore> serve(const std::string& host = "127.0.0.1", std::uint16_t port = 0,
                                TcpStore::Member member = {-1, 0}) {
  Result<std::unique_ptr<TcpStore>> store = TcpStore::serve(host, port, soon(), member);
  EXPECT_TRUE(store.ok()) << store.error().message;
  return std::move(store).value();
}

std::uint16_t free_port() {
  return serve()->port();
}

// Reads until the other side closes or the deadline passes; false then.
bool closed(const Fd& fd, std::string* got = nullptr) {
  std::array<char, 256> bytes{};
  const Deadline deadline = soon();
  while (store::wait_for(fd, POLLIN, deadline).value()) {
    const ssize_t count = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
    if (count <= 0) {
      return true;
    }
    if (got != nullptr) {
      got->append(bytes.data(), static_cast<std::size_t>(count));
    }
  }
  return false;
}

bool contains(const Error& error, const std::string& text) {
  return error.message.find(text) != std::string::npos;
}

TEST(TcpStore, PortInUseIsSaid) {
  const std::unique_ptr<TcpStore> first = serve("0.0.0.0");
  const std::string port = std::to_string(first->port());
  for (const char* host : {"127.0.0.1", "0.0.0.0", "localhost"}) {
    const Result<std::unique_ptr<TcpStore>> second = TcpStore::serve(host, first->port(), soon());
    ASSERT_FALSE(second.ok()) << host;
    EXPECT_EQ(second.error().code, Code::kResource);
    EXPECT_EQ(second.error().sys_errno, EADDRINUSE);
    EXPECT_TRUE(contains(second.error(), port)) << second.error().message;
    EXPECT_TRUE(contains(second.error(), "in use")) << second.error().message;
  }
}

TEST(TcpStore, ThePortIsFreeAgainAfterTheServer) {
  const std::uint16_t port = free_port();
  for (int i = 0; i < 5; ++i) {
    const std::unique_ptr<TcpStore> store = serve("127.0.0.1", port);
    ASSERT_TRUE(store->set("a", "b").ok());
  }
}

TEST(TcpStore, ClientsMayComeFirst) {
  const std::uint16_t port = free_port();
  std::atomic<int> begun{0};
  std::vector<std::thread> clients;
  std::array<std::string, 4> got;
  for (std::string& each : got) {
    clients.emplace_back([&] {
      begun.fetch_add(1);
      Result<std::unique_ptr<TcpStore>> store = TcpStore::connect("127.0.0.1", port, soon());
      if (store.ok()) {
        each = (*store)->get("key", soon()).value();
      }
    });
  }
  while (begun.load() < 4) {
    std::this_thread::yield();
  }
  const std::unique_ptr<TcpStore> server = serve("127.0.0.1", port);
  ASSERT_TRUE(server->set("key", "value").ok());
  for (std::thread& each : clients) {
    each.join();
  }
  for (const std::string& each : got) {
    EXPECT_EQ(each, "value");
  }
}

TEST(TcpStore, HostNamesAndBothFamilies) {
  const std::array<std::pair<std::string, std::string>, 6> pairs = {{{"127.0.0.1", "127.0.0.1"},
                                                                     {"localhost", "localhost"},
                                                                     {"localhost", "127.0.0.1"},
                                                                     {"0.0.0.0", "127.0.0.1"},
                                                                     {"::1", "::1"},
                                                                     {"::", "::1"}}};
  for (const auto& [serves, connects] : pairs) {
    SCOPED_TRACE(serves + " " + connects);
    Result<std::unique_ptr<TcpStore>> server = TcpStore::serve(serves, 0, soon());
    if (!server.ok() && server.error().code == Code::kUnsupported) {
      continue;  // this machine has no IPv6
    }
    ASSERT_TRUE(server.ok()) << server.error().message;
    Result<std::unique_ptr<TcpStore>> client =
        TcpStore::connect(connects, (*server)->port(), Deadline::after_ms(5000));
    if (!client.ok() && connects == "::1" && serves == "::") {
      continue;  // fell back to IPv4
    }
    ASSERT_TRUE(client.ok()) << client.error().message;
    ASSERT_TRUE((*client)->set("k", connects).ok());
    EXPECT_EQ(*(*server)->get("k", soon()), connects);
  }
}

TEST(TcpStore, NobodyThereIsATimeoutThatSaysWhere) {
  const std::uint16_t port = free_port();
  const Result<std::unique_ptr<TcpStore>> store =
      TcpStore::connect("127.0.0.1", port, Deadline::after_ms(100));
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().code, Code::kTimeout);
  EXPECT_TRUE(contains(store.error(), "127.0.0.1:" + std::to_string(port)));
  EXPECT_TRUE(contains(store.error(), "refused")) << store.error().message;
}

TEST(TcpStore, AnUnknownHostIsNamed) {
  const Result<std::unique_ptr<TcpStore>> store =
      TcpStore::connect("no-such-host.invalid", 29500, Deadline::after_ms(50));
  ASSERT_FALSE(store.ok());
  EXPECT_TRUE(contains(store.error(), "no-such-host.invalid")) << store.error().message;
}

TEST(TcpStore, TimeoutNamesKeyPlaceAndWhoNeverCame) {
  const std::unique_ptr<TcpStore> server = serve("127.0.0.1", 0, {0, 4});
  const std::string place = "127.0.0.1:" + std::to_string(server->port());
  const std::unique_ptr<TcpStore> second =
      std::move(TcpStore::connect("127.0.0.1", server->port(), soon(), {2, 4})).value();
  const Result<std::string> got = second->get("card/3", Deadline::after_ms(20));
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, Code::kTimeout);
  EXPECT_TRUE(contains(got.error(), "card/3") && contains(got.error(), place));
  EXPECT_TRUE(contains(got.error(), "ranks 1, 3 of 4")) << got.error().message;
}

TEST(TcpStore, ALateAnswerIsNotTakenForAnother) {
  const std::unique_ptr<TcpStore> server = serve();
  const std::unique_ptr<TcpStore> client =
      std::move(TcpStore::connect("127.0.0.1", server->port(), soon())).value();
  for (int i = 0; i < 50; ++i) {
    const std::string late = "late" + std::to_string(i);
    std::thread setter([&] { EXPECT_TRUE(server->set(late, "LATE").ok()); });
    const Result<std::string> got = client->get(late, Deadline::after_ms(0));
    EXPECT_TRUE(!got.ok() || *got == "LATE");
    EXPECT_EQ(*client->add("n", 1), i + 1);
    setter.join();
  }
}

TEST(TcpStore, TheServersEndWakesWhoWaits) {
  std::unique_ptr<TcpStore> server = serve();
  const std::unique_ptr<TcpStore> client =
      std::move(TcpStore::connect("127.0.0.1", server->port(), soon())).value();
  Error error;
  std::thread waiter([&] {
    EXPECT_TRUE(client->add("waiting", 1).ok());
    error = client->get("never", soon()).error();
  });
  ASSERT_TRUE(server->get("waiting", soon()).ok());
  server.reset();
  waiter.join();
  EXPECT_EQ(error.code, Code::kPeerDead);
  EXPECT_TRUE(contains(error, "127.0.0.1:")) << error.message;
}

TEST(TcpStore, AClientFindsTheNextServer) {
  std::unique_ptr<TcpStore> server = serve();
  const std::uint16_t port = server->port();
  const std::unique_ptr<TcpStore> client =
      std::move(TcpStore::connect("127.0.0.1", port, soon())).value();
  ASSERT_TRUE(client->set("k", "1").ok());
  server.reset();
  server = serve("127.0.0.1", port);
  EXPECT_FALSE(client->set("k", "2").ok());
  EXPECT_TRUE(client->set("k", "3").ok());
  EXPECT_EQ(*server->get("k", soon()), "3");
}

TEST(TcpStore, BoundsAreKept) {
  const std::unique_ptr<TcpStore> server = serve();
  const std::string most(store::kValueBytesMax, 'v');
  ASSERT_TRUE(server->set("most", most).ok());
  EXPECT_TRUE(*server->get("most", soon()) == most);
  EXPECT_EQ(server->set("more", most + "v").error().code, Code::kInvalidArgument);
  EXPECT_EQ(server->set(std::string(store::kKeyBytesMax + 1, 'k'), "").error().code,
            Code::kInvalidArgument);
  EXPECT_TRUE(server->set(std::string(store::kKeyBytesMax, 'k'), "").ok());
}

TEST(TcpStore, StrangersAreDropped) {
  const std::unique_ptr<TcpStore> server = serve();
  const auto raw = [&] {
    return std::move(store::connect_to("127.0.0.1", server->port(), soon())).value();
  };
  const Fd browser = raw();
  const std::string get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_EQ(::send(browser.get(), get.data(), get.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(get.size()));
  EXPECT_TRUE(closed(browser));
  // One that says hello and then announces too much.
  const Fd greedy = raw();
  const store::Hello hello;
  const store::RequestHeader header{.kind = 1, .number = 1, .key_bytes = 5, .value_bytes = ~0U};
  ASSERT_EQ(::send(greedy.get(), &hello, sizeof hello, MSG_NOSIGNAL), ssize_t{sizeof hello});
  ASSERT_EQ(::send(greedy.get(), &header, sizeof header, MSG_NOSIGNAL), ssize_t{sizeof header});
  std::string answer;
  EXPECT_TRUE(closed(greedy, &answer));
  EXPECT_EQ(answer.size(), sizeof hello);
  // Silent ones hold nobody up, nor do those that stop in mid-frame.
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(raw());
    if (i % 2 == 0) {
      ASSERT_EQ(::send(silent.back().get(), &hello, sizeof hello / 2, MSG_NOSIGNAL),
                ssize_t{sizeof hello / 2});
    }
  }
  const std::unique_ptr<TcpStore> client =
      std::move(TcpStore::connect("127.0.0.1", server->port(), soon())).value();
  ASSERT_TRUE(client->set("still", "fine").ok());
  EXPECT_EQ(*server->get("still", soon()), "fine");
}

// A listener of somebody else at the port, which answers with these bytes.
Error connect_to_impostor(const std::string& bytes, std::int64_t limit_ms) {
  std::uint16_t port = 0;
  const std::vector<Fd> listeners = std::move(store::listen_for("127.0.0.1", &port)).value();
  std::thread impostor([&] {
    if (store::wait_for(listeners[0], POLLIN, soon()).value()) {
      const Fd fd(::accept4(listeners[0].get(), nullptr, nullptr, SOCK_CLOEXEC));
      EXPECT_TRUE(fd.valid());
      EXPECT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
      EXPECT_TRUE(closed(fd));
    }
  });
  const Result<std::unique_ptr<TcpStore>> store =
      TcpStore::connect("127.0.0.1", port, Deadline::after_ms(limit_ms));
  impostor.join();
  EXPECT_FALSE(store.ok());
  return store.error();
}

TEST(TcpStore, AnotherProgramAtThePortIsTold) {
  const Error error = connect_to_impostor("SSH-2.0-OpenSSH_9.2 and more bytes\r\n", 30'000);
  EXPECT_EQ(error.code, Code::kProtocol) << error.message;
  EXPECT_TRUE(contains(error, "no isthmus store")) << error.message;
}

TEST(TcpStore, ASilentProgramAtThePortIsATimeout) {
  const Error error = connect_to_impostor("", 100);
  EXPECT_EQ(error.code, Code::kTimeout) << error.message;
  EXPECT_TRUE(contains(error, "does not answer")) << error.message;
}

TEST(TcpStore, AnotherVersionIsRefusedNamingBoth) {
  store::Hello hello;
  hello.version = 99;
  const Error error =
      connect_to_impostor(std::string(reinterpret_cast<const char*>(&hello), sizeof hello), 30'000);
  EXPECT_EQ(error.code, Code::kProtocol);
  EXPECT_TRUE(contains(error, "99") && contains(error, "version 1")) << error.message;
}

TEST(TcpStore, AThousandClients) {
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::size_t count = std::min<std::size_t>(1000, (limit.rlim_cur - 100) / 2);
  const std::unique_ptr<TcpStore> server = serve();
  std::vector<std::unique_ptr<TcpStore>> clients;
  for (std::size_t i = 0; i < count; ++i) {
    clients.push_back(std::move(TcpStore::connect("127.0.0.1", server->port(), soon())).value());
    ASSERT_TRUE(clients.back()->set("card" + std::to_string(i), std::to_string(i)).ok());
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t other = (i * 7 + 3) % count;
    EXPECT_EQ(*clients[i]->get("card" + std::to_string(other), soon()), std::to_string(other));
  }
  // All wait at once, for a value that does not fit the sockets' buffers all together.
  constexpr std::size_t kWaiters = 64;
  const std::string table(std::size_t{1} << 20, 't');
  std::atomic<std::size_t> right{0};
  std::vector<std::thread> waiters;
  for (std::size_t i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&, i] {
      EXPECT_TRUE(clients[i]->add("waiting", 1).ok());
      right.fetch_add(clients[i]->get("table", soon()).value() == table ? 1U : 0U);
    });
  }
  while (server->add("waiting", 0).value() < static_cast<std::int64_t>(kWaiters)) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(server->set("table", table).ok());
  for (std::thread& each : waiters) {
    each.join();
  }
  EXPECT_EQ(right.load(), kWaiters);
}

}  // namespace
}  // namespace isthmus
