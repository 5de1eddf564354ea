#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "transport/endpoint.h"
#include "transport/message_pools.h"
#include "transport/notice_codec.h"

namespace isthmus::tcp {

using isthmus::decode_notice;
using isthmus::eager_cost;
using isthmus::encode_notice;
using isthmus::kEagerBytes;
using isthmus::kMessageBytesMax;
using isthmus::kNoticeFixedBytes;

// What travels between two ranks: frames, each a header of kHeaderBytes and a payload of at most
// kChunkBytes. docs/wire.md is the reference; version 1 is frozen. Fields are in the byte order of
// the hosts, which the handshake compares, because the payloads are in it too.

inline constexpr std::uint32_t kFrameMagic = 0x48545349;         // "ISTH" on a little-endian host
inline constexpr std::uint32_t kFrameMagicSwapped = 0x49535448;  // the peer has the other order
inline constexpr std::uint8_t kWireVersion = 1;

// The largest payload of a frame: it bounds how long one message keeps others from the wire.
inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
// Connections of a pair of ranks, at most.
inline constexpr std::size_t kFlowsMax = 16;
// Eager bytes, counted by eager_cost(), that a sender may have in the receiver's pool.
inline constexpr std::uint64_t kEagerQuota = std::uint64_t{4} << 20;
// A refusal of a handshake says why in at most this many bytes.
inline constexpr std::size_t kRejectTextMax = 512;

enum class FrameType : std::uint8_t {
  kHello = 1,     // handshake: who I am and whom I want; payload Hello
  kWelcome = 2,   // handshake: the answer; payload Hello
  kStart = 3,     // handshake: the connection is in use from here on
  kReject = 4,    // handshake: refused for good; payload a sentence
  kEager = 5,     // a whole small message
  kRequest = 6,   // I have a message of message_bytes for this tag
  kCredit = 7,    // I have a buffer of message_bytes for this tag: send
  kChunk = 8,     // bytes [offset, offset + payload_bytes) of a message, number `chunk`
  kAck = 9,       // the whole message of this tag has arrived; its chunks had kFlagWantsAck
  kRefuse = 10,   // sizes disagree: the message or the buffer of this tag is refused
  kNotice = 11,   // payload an encoded Notice
  kGoodbye = 12,  // the sender leaves; nothing follows
  kFreed = 13,    // carries `freed` when no other frame does
};

inline constexpr std::uint8_t kFrameTypeLast = 13;

// Bits of FrameHeader::flags.
inline constexpr std::uint8_t kFlagChecked = 1;       // header_check and payload_check are set
inline constexpr std::uint8_t kFlagRefusesEager = 2;  // of kRefuse: the message came without asking
inline constexpr std::uint8_t kFlagRefusesRecv = 4;  // of kRefuse: the receiver's buffer is refused
inline constexpr std::uint8_t kFlagDropped = 8;      // of kRefuse: the receiver had cancelled it
inline constexpr std::uint8_t kFlagWantsAck = 16;    // of kChunk: the sender's buffer waits for it
inline constexpr std::uint8_t kFlagsAll = 31;

// Values of FrameHeader::state: what the sender was doing, for diagnosis.
inline constexpr std::uint8_t kStateRunning = 0;
inline constexpr std::uint8_t kStateLeaving = 1;

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  std::uint8_t version = kWireVersion;
  std::uint8_t type = 0;
  std::uint8_t flags = 0;
  std::uint8_t header_bytes = 96;
  std::uint32_t payload_bytes = 0;
  std::uint32_t sender = 0;     // world rank
  std::uint64_t operation = 0;  // Tag
  std::uint32_t message = 0;
  std::uint32_t chunk = 0;  // number of the chunk within the message; of others is_numbered() tells
  std::uint64_t message_bytes = 0;  // of the whole message
  std::uint64_t offset = 0;         // of the payload within the message
  std::uint32_t signature = 0;      // OperationInfo from here to count
  std::uint8_t kind = 0;
  std::uint8_t dtype = 0;
  std::uint8_t red_op = 0;
  std::uint8_t info_reserved = 0;  // sent as 0, ignored
  std::uint32_t root = 0;
  std::uint32_t newest = 0;  // low half of the operation that the sender posted last, to this rank
  std::uint64_t count = 0;
  std::uint64_t freed = 0;  // eager bytes of the receiver of this frame that left the pool, in all
  std::uint8_t state = 0;
  std::uint8_t rail = 0;       // number of the flow; in a hello of the one to be made
  std::uint16_t reserved = 0;  // sent as 0, ignored
  std::uint32_t acked = 0;     // number of the last numbered frame that came
  std::uint32_t header_check = 0;
  std::uint32_t payload_check = 0;
};

inline constexpr std::size_t kHeaderBytes = sizeof(FrameHeader);
static_assert(kHeaderBytes == 96);

// Payload of kHello and kWelcome. The first 16 bytes keep their place in every version.
struct Hello {
  std::uint32_t byte_order = 0x01020304;
  std::uint32_t version = kWireVersion;
  std::uint64_t incarnation = 0;  // nonce of the job's run: others are strangers
  std::uint64_t config = 0;       // hash of what ranks must agree on
  std::uint32_t sender = 0;
  std::uint32_t expected = 0;  // the rank that the sender wants to talk to
  std::uint32_t ranks = 0;
  std::uint32_t eager_bytes = kEagerBytes;
  std::uint32_t chunk_bytes = kChunkBytes;
  std::uint32_t eager_quota = kEagerQuota;
  std::uint64_t reserved = 0;
};

static_assert(sizeof(Hello) == 56);

constexpr FrameType frame_type(const FrameHeader& header) {
  return static_cast<FrameType>(header.type);
}

// Whether frames of this type are numbered (in `chunk`, from 1) once a pair has several flows; the
// others are 0. What is lost with a flow is sent again on another, and known by its number.
constexpr bool is_numbered(FrameType type) {
  return type == FrameType::kEager || type == FrameType::kRequest || type == FrameType::kCredit ||
         type == FrameType::kAck || type == FrameType::kRefuse || type == FrameType::kNotice;
}

Tag frame_tag(const FrameHeader& header);
OperationInfo frame_info(const FrameHeader& header);

// A header with tag and info filled in.
FrameHeader make_header(FrameType type, const Tag& tag, const OperationInfo& info);

// Why these bytes are no frame of this version, as the end of a sentence ("frame type 99 is
// unknown"), or nothing. Checks every length against its bound; never trusts one field by another.
std::optional<std::string> header_fault(const FrameHeader& header);

// Fills the checks and sets kFlagChecked; last, when nothing else of the header changes.
void seal(FrameHeader* header, std::span<const std::byte> payload);
bool header_check_holds(const FrameHeader& header);
bool payload_check_holds(const FrameHeader& header, std::span<const std::byte> payload);

// Both sides of a handshake by name: why `theirs` cannot talk to `ours`, as a full sentence.
// The incarnation is not compared here: a stranger gets no sentence.
std::optional<std::string> hello_fault(const Hello& ours, const Hello& theirs);

}  // namespace isthmus::tcp
