#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::nccl {

// What travels between the two halves of a connection of the plug-in. Both ends must be isthmus of
// one protocol version; integers are in the byte order of the hosts, and the magic numbers show a
// host of the other order.

inline constexpr std::uint16_t kFrameMagic = 0x4e49;  // "IN" on a little-endian host
inline constexpr std::uint32_t kHelloMagic = 0x4e545349;
inline constexpr std::uint16_t kProtocolVersion = 1;

enum class FrameType : std::uint8_t {
  kData = 1,  // a message, or a part of one
  kAck = 2,   // from the receiver: all messages below `message` are whole; only with several flows
};

inline constexpr std::uint8_t kFlagChecked = 1;  // `check` holds a checksum of the payload

// Before each payload, in the same system call. With one flow a frame is a whole message (up to
// kFrameBytesMax), so the 32 bytes are all that is paid over a bare socket.
struct FrameHeader {
  std::uint16_t magic = kFrameMagic;
  FrameType type = FrameType::kData;
  std::uint8_t flags = 0;
  std::uint32_t message = 0;        // number of the message in its connection, from 0, wraps
  std::uint64_t message_bytes = 0;  // of the whole message
  std::uint64_t offset = 0;         // of the payload within the message
  std::uint32_t payload_bytes = 0;  // at most kFrameBytesMax
  std::uint32_t check = 0;          // low half of XXH3-64 of the payload
};

static_assert(sizeof(FrameHeader) == 32);

inline constexpr std::uint32_t kFrameBytesMax = 1U << 30;
// The limit that NCCL knows (maxP2pBytes): longer messages are refused at the sender.
inline constexpr std::uint64_t kMessageBytesMax = 1ULL << 40;

// Who may talk to a listening comm: whoever has its handle. Unguessable, from the kernel.
struct Nonce {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const Nonce&) const = default;
};

inline constexpr std::uint32_t kHelloSeveral = 1;  // several flows: acks are wanted
inline constexpr std::uint32_t kHelloChecked = 2;  // frames are checked

// First bytes of the caller, the sender of data.
struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint16_t version = kProtocolVersion;
  std::uint16_t flow = 0;  // number of the flow; the first one makes the comm
  Nonce nonce;
  std::uint64_t comm = 0;  // chosen by the caller: flows of one comm have the same number
  std::uint32_t flags = 0;
  std::uint32_t pid = 0;  // of the caller, for texts
  std::uint64_t reserved[3] = {};
};

static_assert(sizeof(Hello) == 64);

// The answer, from the listener's thread: the caller has reached the process that it wants.
struct Welcome {
  std::uint32_t magic = kHelloMagic;
  std::uint16_t version = kProtocolVersion;
  std::uint16_t refused = 0;  // 1: this version is not spoken here
  std::uint64_t comm = 0;
  std::uint32_t pid = 0;
  std::uint32_t reserved[3] = {};
};

static_assert(sizeof(Welcome) == 32);

// Whether message `a` comes before `b`, around the wrap.
constexpr bool before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
}

// The chunks of a message that travels over several flows: all but the last have this size, so that
// number and offset determine each other.
inline constexpr std::uint64_t kChunkBytesMin = 64 << 10;
inline constexpr std::uint64_t kChunkBytesMax = 256 << 10;

constexpr std::uint64_t chunk_bytes_of(std::uint64_t message_bytes) {
  const std::uint64_t wanted = (message_bytes / 32 + 4095) / 4096 * 4096;
  return wanted < kChunkBytesMin ? kChunkBytesMin
                                 : (wanted > kChunkBytesMax ? kChunkBytesMax : wanted);
}

}  // namespace isthmus::nccl
