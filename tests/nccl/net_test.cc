// Goal: the core of the NCCL plug-in keeps NCCL's rules. Method: one process connected to itself.
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "plugins/nccl/registry.h"
#include "tests/nccl/pair.h"
#include "transport/tcp/sockets.h"

namespace isthmus::nccl {
namespace {

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::byte>((i * 7 + i / 251 + seed) & 0xff);
  }
  return out;
}

TEST(Net, HandleTravels) {
  Handle handle;
  handle.nonce = {1, 2};
  handle.address.host = 77;
  for (unsigned i = 0; i < 30; ++i) {
    tcp::Candidate each;
    each.family = i % 3 == 0 ? 6 : 4;
    each.prefix = 24;
    each.port = 4711;
    each.interface = static_cast<std::uint8_t>(i);
    each.ip[0] = static_cast<std::uint8_t>(i);
    handle.address.candidates.push_back(each);
  }
  std::array<std::byte, kHandleBytes> bytes{};
  encode_handle(handle, bytes);
  const Result<Handle> got = decode_handle(bytes);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->nonce, handle.nonce);
  EXPECT_EQ(got->address.host, 77U);
  ASSERT_EQ(got->address.candidates.size(), 13U);
  EXPECT_EQ(got->address.candidates[0], handle.address.candidates[1]);
  bytes[0] ^= std::byte{1};
  EXPECT_FALSE(decode_handle(bytes).ok());
}

TEST(Net, ManySizesInOrder) {
  Pair pair;
  for (const std::size_t bytes :
       {0UL, 1UL, 8UL, 4096UL, 4097UL, 65536UL, 1UL << 20, (5UL << 20) + 3}) {
    const std::vector<std::byte> out = pattern(bytes, 1);
    std::vector<std::byte> in(bytes + 64, std::byte{0xee});
    for (int round = 0; round < 3; ++round) {
      Request* const recv = pair.post_recv(in.data(), in.size());
      Request* const send = pair.post_send(out.data(), bytes);
      EXPECT_EQ(finish(recv), static_cast<std::int64_t>(bytes));
      EXPECT_EQ(finish(send), static_cast<std::int64_t>(bytes));
      EXPECT_TRUE(bytes == 0 || std::memcmp(in.data(), out.data(), bytes) == 0);
      EXPECT_EQ(in[bytes], std::byte{0xee}) << "written beyond the message";
    }
  }
}

TEST(Net, MixedStreamTestedOldestFirst) {
  Pair pair;
  constexpr unsigned kMessages = 400;
  constexpr unsigned kWindow = 32;
  std::vector<std::vector<std::byte>> out;
  std::vector<std::vector<std::byte>> in;
  for (unsigned i = 0; i < kMessages; ++i) {
    out.push_back(pattern(i % 5 == 0 ? 300'000 : (i * 37) % 9000, i));
    in.emplace_back(out.back().size() + 10);
  }
  std::vector<Request*> sends;
  std::vector<Request*> recvs;
  unsigned sent = 0;
  unsigned received = 0;
  while (received < kMessages) {
    while (sends.size() < kMessages && sends.size() < sent + kWindow) {
      Request* const next = pair.post_send(out[sends.size()].data(), out[sends.size()].size());
      ASSERT_NE(next, nullptr);
      sends.push_back(next);
    }
    while (recvs.size() < kMessages && recvs.size() < received + kWindow) {
      Request* const next = pair.post_recv(in[recvs.size()].data(), in[recvs.size()].size());
      ASSERT_NE(next, nullptr);
      recvs.push_back(next);
    }
    std::uint64_t bytes = 0;
    if (sent < sends.size()) {
      sent += *test_request(sends[sent], &bytes) ? 1U : 0U;
    }
    if (*test_request(recvs[received], &bytes)) {
      ASSERT_EQ(bytes, out[received].size());
      ASSERT_TRUE(bytes == 0 || std::memcmp(in[received].data(), out[received].data(), bytes) == 0);
      ++received;
    }
  }
}

TEST(Net, FullQueueIsNoError) {
  Pair pair;
  std::uint64_t value = 0;
  std::vector<Request*> posted;
  while (Request* const next = pair.post_recv(&value, 8)) {
    posted.push_back(next);
  }
  EXPECT_GE(posted.size(), 32U);
}

TEST(Net, DeferredSendsGoWhenOthersPoll) {
  Pair pair;
  Pair other;
  const std::uint64_t out = 5;
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  std::uint64_t never = 0;
  Request* const recv1 = pair.post_recv(&first, 8);
  Request* const recv2 = pair.post_recv(&second, 8);
  pair.post_send(&out, 8);
  pair.post_send(&out, 8);  // waits for company; nobody tests a send of this comm
  Request* const elsewhere = other.post_recv(&never, 8);
  std::uint64_t bytes = 0;
  EXPECT_FALSE(*test_request(elsewhere, &bytes));
  EXPECT_EQ(finish(recv1), 8);
  EXPECT_EQ(finish(recv2), 8);
  EXPECT_EQ(second, 5U);
}

TEST(Net, LongerMessageIsRefusedWithBothSizes) {
  Pair pair;
  const std::vector<std::byte> out = pattern(100, 0);
  std::vector<std::byte> in(60, std::byte{0xee});
  Request* const recv = pair.post_recv(in.data(), 50);
  pair.post_send(out.data(), 100);
  std::uint64_t bytes = 0;
  const Deadline deadline = Deadline::after_ms(10'000);
  for (;;) {
    const Result<bool> done = test_request(recv, &bytes);
    if (!done.ok()) {
      EXPECT_EQ(done.error().code, Code::kMismatch);
      EXPECT_NE(done.error().message.find("100 B"), std::string::npos) << done.error().message;
      EXPECT_NE(done.error().message.find("50 B"), std::string::npos) << done.error().message;
      break;
    }
    ASSERT_FALSE(*done);
    ASSERT_FALSE(deadline.passed(monotonic_ns()));
  }
  EXPECT_EQ(in[50], std::byte{0xee});
}

TEST(Net, PeerThatIsGoneIsNamed) {
  Pair pair;
  std::uint64_t value = 0;
  Request* const recv = pair.post_recv(&value, 8);
  pair.send.reset();
  std::uint64_t bytes = 0;
  const Deadline deadline = Deadline::after_ms(10'000);
  Result<bool> done = test_request(recv, &bytes);
  while (done.ok() && !deadline.passed(monotonic_ns())) {
    done = test_request(recv, &bytes);
  }
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Code::kPeerDead);
  EXPECT_NE(done.error().message.find("127.0.0.1"), std::string::npos) << done.error().message;
}

TEST(Net, MessagesBeforeTheCloseArrive) {
  Pair pair;
  const std::uint64_t out = 9;
  std::uint64_t in[2] = {};
  pair.post_send(&out, 8);
  Request* const second = pair.post_send(&out, 8);
  EXPECT_EQ(finish(second), 8);
  pair.send.reset();
  EXPECT_EQ(finish(pair.post_recv(&in[0], 8)), 8);
  EXPECT_EQ(finish(pair.post_recv(&in[1], 8)), 8);
  EXPECT_EQ(in[1], 9U);
}

TEST(Net, CloseInFlight) {
  Pair pair;
  const std::vector<std::byte> out = pattern(32 << 20, 0);
  std::vector<std::byte> in(out.size());
  pair.post_recv(in.data(), in.size());
  pair.post_send(out.data(), out.size());
  pair.recv.reset();
  pair.send.reset();
}

TEST(Net, ListenCommIsAcceptedTwiceAndStrangersAreDropped) {
  Pair pair;
  std::vector<Fd> strangers;
  const Result<Handle> handle = decode_handle(pair.handle);
  ASSERT_TRUE(handle.ok());
  tcp::Candidate here = handle->address.candidates.front();
  for (const tcp::Candidate& each : handle->address.candidates) {
    here = each.loopback && each.family == 4 ? each : here;
  }
  for (unsigned i = 0; i < 300; ++i) {  // half of them talk, none knows the nonce
    Result<Fd> fd = tcp::start_connect(here);
    ASSERT_TRUE(fd.ok());
    strangers.push_back(std::move(*fd));
    if (i % 2 == 0) {
      ::send(strangers.back().get(), "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL);
    }
  }
  std::unique_ptr<SendComm> send;
  std::unique_ptr<RecvComm> recv;
  const Deadline deadline = Deadline::after_ms(10'000);
  while ((send == nullptr || recv == nullptr) && !deadline.passed(monotonic_ns())) {
    if (send == nullptr) {
      Result<std::unique_ptr<SendComm>> called = Net::get().connect(0, pair.handle);
      ASSERT_TRUE(called.ok()) << called.error().message;
      send = std::move(*called);
    }
    if (recv == nullptr) {
      Result<std::unique_ptr<RecvComm>> came = Net::accept(*pair.listen);
      recv = std::move(*came);
    }
  }
  EXPECT_NE(send, nullptr);
  EXPECT_NE(recv, nullptr);
}

TEST(Net, ConnectNeedsNoAcceptAndDumpNamesWhoWaits) {
  Net& net = Net::get();
  ASSERT_TRUE(net.init("test").ok());
  std::array<std::byte, kHandleBytes> handle{};
  Result<std::unique_ptr<ListenComm>> listen = net.listen(0, handle);
  ASSERT_TRUE(listen.ok());
  std::unique_ptr<SendComm> send;
  const Deadline deadline = Deadline::after_ms(10'000);
  while (send == nullptr && !deadline.passed(monotonic_ns())) {
    Result<std::unique_ptr<SendComm>> called = net.connect(0, handle);
    ASSERT_TRUE(called.ok()) << called.error().message;
    send = std::move(*called);
  }
  ASSERT_NE(send, nullptr);
  EXPECT_NE(registry_dump().find("send to 127.0.0.1"), std::string::npos) << registry_dump();
  Net::close(**listen);
  Result<std::unique_ptr<SendComm>> late = net.connect(0, handle);
  while (late.ok() && *late == nullptr && !deadline.passed(monotonic_ns())) {
    late = net.connect(0, handle);
  }
  EXPECT_FALSE(late.ok()) << "nobody listens any more";
  net.finish();
}

}  // namespace
}  // namespace isthmus::nccl
