// Goal: bytes of strangers, of other jobs, versions and configurations, and of peers that break the
// protocol never crash a rank, never cost it more than one connection, and are answered or logged
// as docs/wire.md says. Method: a raw socket of the test against transports in the same process;
// seeded random bytes for the parsers.
#include <array>
#include <bit>
#include <cstdio>
#include <deque>
#include <random>

#include "tests/transport/tcp_raw_peer.h"
#include "tests/transport/tcp_world.h"
#include "transport/tcp/connector.h"
#include "transport/tcp/frame_reader.h"

namespace isthmus::tcp_test {
namespace {

using tcp::FrameHeader;
using tcp::FrameType;

std::mt19937_64 seeded(std::uint64_t seed) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return std::mt19937_64(seed);
}

FrameHeader random_header(std::mt19937_64& random, bool plausible) {
  std::array<std::uint64_t, sizeof(FrameHeader) / 8> words{};
  for (std::uint64_t& word : words) {
    word = random() >> (random() % 64);
  }
  auto header = std::bit_cast<FrameHeader>(words);
  if (plausible) {
    header.magic = tcp::kFrameMagic;
    header.version = tcp::kWireVersion;
    header.header_bytes = tcp::kHeaderBytes;
    header.flags &= static_cast<std::uint8_t>(~tcp::kFlagChecked);
    header.type = static_cast<std::uint8_t>(random() % 15);
    if (random() % 2 == 0) {
      header.payload_bytes %= 9000;
      header.message_bytes = random() % 3 == 0 ? header.payload_bytes : header.message_bytes;
    }
  }
  return header;
}

// A frame of rank 1 that holds the bounds, with tags and numbers that often meet those of the test.
FrameHeader near_frame(std::mt19937_64& random) {
  constexpr std::array<FrameType, 8> kTypes = {
      FrameType::kEager, FrameType::kChunk, FrameType::kRequest, FrameType::kCredit,
      FrameType::kChunk, FrameType::kAck,   FrameType::kRefuse,  FrameType::kFreed};
  constexpr std::array<std::uint32_t, 5> kSizes = {0, 1, 100, 20'000, 50'000};
  const Tag tag{random() % 2, static_cast<std::uint32_t>(random() % 4)};
  const FrameType type = kTypes[random() % kTypes.size()];
  FrameHeader header = RawPeer::frame(type, 1, 0, tag);
  header.message_bytes = kSizes[random() % kSizes.size()];
  header.flags = static_cast<std::uint8_t>(random() % 16) & 0xe;
  if (type == FrameType::kEager) {
    header.message_bytes %= 8193;
    header.payload_bytes = static_cast<std::uint32_t>(header.message_bytes);
  } else if (type == FrameType::kChunk) {
    header.chunk = static_cast<std::uint32_t>(random() % 2);
    header.offset = header.chunk * header.message_bytes / 2;
    header.payload_bytes = static_cast<std::uint32_t>(
        header.chunk == 0 ? header.message_bytes / 2 : header.message_bytes - header.offset);
  }
  return header;
}

TEST(TcpParsers, RandomHeadersAreBoundedOrRefused) {
  std::mt19937_64 random = seeded(1);
  int accepted = 0;
  for (int i = 0; i < 300'000; ++i) {
    const FrameHeader header = random_header(random, i % 4 != 0);
    if (!tcp::header_fault(header)) {
      ++accepted;
      EXPECT_LE(header.payload_bytes, tcp::kChunkBytes);
      EXPECT_LE(header.message_bytes, tcp::kMessageBytesMax);
      if (tcp::frame_type(header) == FrameType::kChunk) {
        EXPECT_LE(header.offset + header.payload_bytes, header.message_bytes);
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(TcpParsers, RandomNoticesAndAddresses) {
  std::mt19937_64 random = seeded(2);
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> bytes(random() % 1100);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random() % (i % 2 == 0 ? 256 : 7));
    }
    if (const Result<Notice> notice = tcp::decode_notice(bytes); notice.ok()) {
      EXPECT_LE(notice->text.size(), kNoticeTextMax);
    }
    if (const Result<tcp::Address> address = tcp::decode_address(bytes); address.ok()) {
      EXPECT_LE(address->candidates.size(), tcp::kCandidatesMax);
    }
  }
}

TEST(TcpParsers, ChecksumsSeeEveryByte) {
  const std::vector<std::byte> payload = pattern(1000, 3);
  FrameHeader header = RawPeer::frame(FrameType::kEager, 1, payload.size());
  tcp::seal(&header, payload);
  EXPECT_FALSE(tcp::header_fault(header).has_value());
  EXPECT_TRUE(tcp::payload_check_holds(header, payload));
  for (std::size_t i = 8; i < sizeof(header); ++i) {
    FrameHeader changed = header;
    auto* bytes = reinterpret_cast<unsigned char*>(&changed);
    bytes[i] = static_cast<unsigned char>(bytes[i] ^ 0x10U);
    EXPECT_TRUE(tcp::header_fault(changed).has_value()) << i;
  }
  std::vector<std::byte> other = payload;
  other[777] ^= std::byte{1};
  EXPECT_FALSE(tcp::payload_check_holds(header, other));
}

TEST(TcpStrangers, NoiseIsDropped) {
  std::mt19937_64 random = seeded(4);
  TcpWorld world(2);
  for (int i = 0; i < 60; ++i) {
    RawPeer stranger(&world, i % 2);
    std::vector<std::byte> noise(1 + random() % 2000);
    for (std::byte& byte : noise) {
      byte = static_cast<std::byte>(random());
    }
    if (i % 3 == 0) {  // looks like ours at first
      const FrameHeader header = random_header(random, true);
      std::memcpy(noise.data(), &header, std::min(sizeof(header), noise.size()));
    }
    stranger.send(noise);
    if (noise.size() >= sizeof(FrameHeader)) {
      EXPECT_TRUE(stranger.closed()) << i;
    }
    world.turns(2);
  }
  world.exchange(0, 1);
  EXPECT_TRUE(world.events(0).dead.empty());
}

TEST(TcpStrangers, TheSilentAreBoundedInTimeAndNumber) {
  TcpWorld world(2);
  std::deque<RawPeer> silent;
  for (std::size_t i = 0; i <= tcp::Connector::kStrangersMax; ++i) {
    silent.emplace_back(&world, 0);
    world.turns(2);
  }
  EXPECT_TRUE(silent.front().closed()) << "one too many are open";
  world.exchange(0, 1);
  const std::int64_t start = monotonic_ns();
  EXPECT_TRUE(silent.back().closed());
  EXPECT_LT(monotonic_ns() - start, 2 * tcp::Connector::kHelloNs);
}

TEST(TcpHandshake, AnotherRunIsDroppedWithoutAWord) {
  TcpWorld world(2);
  RawPeer stranger(&world, 0);
  tcp::Hello hello = RawPeer::hello(1, 0, 2);
  hello.incarnation ^= 1;
  stranger.send_hello(hello);
  EXPECT_TRUE(stranger.closed());
}

TEST(TcpHandshake, AnotherVersionIsToldSo) {
  for (const bool swapped : {false, true}) {
    TcpWorld world(2);
    RawPeer caller(&world, 0);
    FrameHeader header = RawPeer::frame(FrameType::kHello, 1, sizeof(tcp::Hello));
    header.version = 9;
    header.magic = swapped ? tcp::kFrameMagicSwapped : tcp::kFrameMagic;
    caller.send(header);
    const FrameHeader answer = caller.receive_header();
    ASSERT_EQ(tcp::frame_type(answer), FrameType::kReject);
    const std::vector<std::byte> bytes = caller.receive(answer.payload_bytes);
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_NE(text.find("wire version 1"), std::string::npos) << text;
    EXPECT_NE(text.find(swapped ? "byte order" : "version is 9"), std::string::npos) << text;
    EXPECT_TRUE(caller.closed());
  }
}

TEST(TcpHandshake, DifferencesAreRefusedNamingBothSides) {
  const std::array<void (*)(TcpOptions*), 2> cases = {
      [](TcpOptions* options) { options->config = static_cast<std::uint64_t>(options->rank + 7); },
      [](TcpOptions* options) { options->size += options->rank; }};
  for (const auto& adjust : cases) {
    TcpWorld world(2, adjust);
    const std::vector<std::byte> out(10);
    world.send(0, 1, {1, 1}, out, 1);
    ASSERT_TRUE(world.wait_for(0, 1));
    EXPECT_EQ(world.outcome(0, 1).code, Code::kProtocol);
    const Result<Endpoint::Post> later = world.at(0).endpoint(1).post_send({1, 2}, {}, out, {});
    ASSERT_FALSE(later.ok());
    const std::string& text = later.error().message;
    EXPECT_NE(text.find("Rank 1 has"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 0 has"), std::string::npos) << text;
    EXPECT_EQ(later.error().culprit, 1);
  }
}

TEST(TcpHandshake, MixedUpAddressesAreNamed) {
  TcpWorld world(3, [](TcpOptions* options) { options->connect_timeout_ms = 200; });
  ASSERT_TRUE(world.at(0).set_address(1, world.at(2).address()).ok());
  const std::vector<std::byte> out(10);
  world.send(0, 1, {1, 1}, out, 1);
  ASSERT_TRUE(world.wait_for(0, 1));
  EXPECT_EQ(world.outcome(0, 1).code, Code::kTimeout);
  const Result<Endpoint::Post> later = world.at(0).endpoint(1).post_send({1, 2}, {}, out, {});
  ASSERT_FALSE(later.ok());
  EXPECT_NE(later.error().message.find("wanted rank 1 but reached rank 2"), std::string::npos)
      << later.error().message;
}

// What a peer that has shaken hands may not send.
struct Breach {
  const char* name;
  void (*send)(RawPeer*);
};

const std::array<Breach, 9> kBreaches = {{
    {"an unknown type",
     [](RawPeer* peer) {
       FrameHeader header = RawPeer::frame(FrameType::kFreed, 1, 0);
       header.type = 99;
       peer->send(header);
     }},
    {"an overlong payload",
     [](RawPeer* peer) {
       FrameHeader header = RawPeer::frame(FrameType::kEager, 1, tcp::kEagerBytes + 1);
       peer->send(header);
     }},
    {"another rank's name",
     [](RawPeer* peer) { peer->send(RawPeer::frame(FrameType::kFreed, 2, 0)); }},
    {"a hello in the middle", [](RawPeer* peer) { peer->send_hello(RawPeer::hello(1, 0, 3)); }},
    {"more freed than sent",
     [](RawPeer* peer) {
       FrameHeader header = RawPeer::frame(FrameType::kFreed, 1, 0);
       header.freed = 1;
       peer->send(header);
     }},
    {"a chunk that is not next",
     [](RawPeer* peer) {
       FrameHeader header = RawPeer::frame(FrameType::kChunk, 1, 100, {1, 1});
       header.message_bytes = 20'000;
       header.offset = 500;
       header.chunk = 1;
       peer->send(header, std::vector<std::byte>(100));
     }},
    {"a broken notice",
     [](RawPeer* peer) {
       peer->send(RawPeer::frame(FrameType::kNotice, 1, 20), std::vector<std::byte>(20));
     }},
    {"more than its quota",
     [](RawPeer* peer) {
       for (std::uint32_t i = 0; i < 600; ++i) {
         if (!peer->send(RawPeer::frame(FrameType::kEager, 1, 8000, {77, i}),
                         std::vector<std::byte>(8000))) {
           return;
         }
       }
     }},
    {"a wrong checksum",
     [](RawPeer* peer) {
       FrameHeader header = RawPeer::frame(FrameType::kEager, 1, 4, {8, 8});
       tcp::seal(&header, std::vector<std::byte>(4));
       peer->send(header, std::vector<std::byte>(4, std::byte{1}));
     }},
}};

TEST(TcpBreaches, EndTheConnectionAndNothingElse) {
  for (const Breach& breach : kBreaches) {
    SCOPED_TRACE(breach.name);
    TcpWorld world(3);
    world.exchange(0, 2);
    RawPeer peer(&world, 0);
    peer.shake_hands(1, 0, 3);
    std::vector<std::byte> in(20'000);
    world.recv(0, 1, {1, 1}, in, 1);
    breach.send(&peer);
    ASSERT_TRUE(world.wait_for(0, 1));
    EXPECT_EQ(world.outcome(0, 1).code, Code::kProtocol);
    ASSERT_EQ(world.events(0).dead, std::vector<int>{1});
    const Result<Endpoint::Post> later = world.at(0).endpoint(1).post_recv({2, 2}, {}, in, {});
    ASSERT_FALSE(later.ok());
    EXPECT_NE(later.error().message.find("rank 1"), std::string::npos) << later.error().message;
    world.exchange(0, 2);
  }
}

TEST(TcpBreaches, TruncatedFramesAreADeath) {
  for (const std::size_t cut :
       {std::size_t{1}, std::size_t{95}, std::size_t{96}, std::size_t{500}}) {
    SCOPED_TRACE(cut);
    TcpWorld world(2);
    RawPeer peer(&world, 0);
    peer.shake_hands(1, 0, 2);
    std::vector<std::byte> in(1000);
    world.recv(0, 1, {1, 1}, in, 1);
    const FrameHeader header = RawPeer::frame(FrameType::kEager, 1, 1000, {1, 1});
    std::vector<std::byte> frame(sizeof(header) + 1000);
    std::memcpy(frame.data(), &header, sizeof(header));
    peer.send(std::span(frame).first(cut));
    peer.close();
    ASSERT_TRUE(world.wait_for(0, 1));
    EXPECT_EQ(world.outcome(0, 1).code, Code::kPeerDead);
    EXPECT_EQ(world.events(0).dead, std::vector<int>{1});
  }
}

TEST(TcpBreaches, DuplicatesAreDropped) {
  TcpWorld world(2);
  RawPeer peer(&world, 0);
  peer.shake_hands(1, 0, 2);
  const std::vector<std::byte> out = pattern(20'000, 6);
  std::vector<std::byte> in(out.size());
  world.recv(0, 1, {1, 1}, in, 1);
  ASSERT_EQ(tcp::frame_type(peer.receive_header()), FrameType::kCredit);
  const std::span<const std::byte> bytes(out);
  FrameHeader first = RawPeer::frame(FrameType::kChunk, 1, 12'000, {1, 1});
  first.message_bytes = out.size();
  FrameHeader second = RawPeer::frame(FrameType::kChunk, 1, 8'000, {1, 1});
  second.message_bytes = out.size();
  second.offset = 12'000;
  second.chunk = 1;
  const std::vector<std::byte> wrong(12'000, std::byte{0xee});
  peer.send(first, bytes.first(12'000));
  peer.send(first, wrong);
  peer.send(second, bytes.subspan(12'000));
  peer.send(second, std::span(wrong).first(8'000));
  peer.send(first, wrong);
  // An eager message twice: before and after its receive.
  const FrameHeader eager = RawPeer::frame(FrameType::kEager, 1, 300, {2, 2});
  peer.send(eager, bytes.first(300));
  peer.send(eager, std::span(wrong).first(300));
  ASSERT_TRUE(world.wait_for(0, 1));
  std::vector<std::byte> small(300);
  world.recv(0, 1, {2, 2}, small, 2);
  ASSERT_TRUE(world.wait_for(0, 2));
  world.turns(20);
  EXPECT_FALSE(world.outcome(0, 1).failed || world.outcome(0, 2).failed);
  EXPECT_EQ(in, out);
  EXPECT_TRUE(std::equal(small.begin(), small.end(), out.begin()));
  EXPECT_TRUE(world.events(0).dead.empty());
}

// Random frames after a good handshake: whatever they do to the lane, nothing crashes and the other
// lane works.
TEST(TcpBreaches, RandomFrames) {
  std::mt19937_64 random = seeded(8);
  for (int round = 0; round < 150; ++round) {
    TcpWorld world(3);
    RawPeer peer(&world, 0);
    peer.shake_hands(1, 0, 3);
    std::vector<std::byte> in(50'000);
    std::vector<std::byte> small(100);
    world.recv(0, 1, {1, 1}, in, 1);
    world.recv(0, 1, {1, 2}, small, 2);
    world.send(0, 1, {1, 3}, in, 3);
    for (int i = 0; i < 40; ++i) {
      FrameHeader header = near_frame(random);
      if (random() % 50 == 0) {
        header = random_header(random, true);
        header.sender = 1;
      }
      const std::vector<std::byte> payload(std::min<std::size_t>(header.payload_bytes, 300'000));
      if (!peer.send(header, payload)) {
        break;
      }
    }
    peer.close();
    ASSERT_TRUE(world.run_until(
        [&] { return world.at(0).endpoint(1).post_recv({9, 9}, {}, in, {}).ok() == false; },
        "the end of the lane"));
    world.exchange(0, 2);
  }
}

}  // namespace
}  // namespace isthmus::tcp_test
