#include "transport/tcp/wire.h"

#include <cstring>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace isthmus::tcp {
namespace {

std::uint32_t check_of(const void* data, std::size_t bytes) {
  return static_cast<std::uint32_t>(XXH3_64bits(data, bytes));
}

std::uint32_t header_check_of(FrameHeader header) {
  header.header_check = 0;
  return check_of(&header, sizeof(header));
}

// The largest payload that a frame of this type may carry, and the least.
struct PayloadBounds {
  std::size_t least;
  std::size_t most;
};

PayloadBounds payload_bounds(FrameType type) {
  switch (type) {
    case FrameType::kHello:
    case FrameType::kWelcome:
      return {sizeof(Hello), sizeof(Hello)};
    case FrameType::kReject:
      return {0, kRejectTextMax};
    case FrameType::kEager:
      return {0, kEagerBytes};
    case FrameType::kChunk:
      return {0, kChunkBytes};
    case FrameType::kNotice:
      return {kNoticeFixedBytes, kNoticeFixedBytes + kNoticeTextMax};
    case FrameType::kStart:
    case FrameType::kRequest:
    case FrameType::kCredit:
    case FrameType::kAck:
    case FrameType::kRefuse:
    case FrameType::kGoodbye:
    case FrameType::kFreed:
      break;
  }
  return {0, 0};
}

std::optional<std::string> message_fault(const FrameHeader& header) {
  if (header.message_bytes > kMessageBytesMax) {
    return fmt::format("a message of {} bytes is beyond the bound of {}", header.message_bytes,
                       kMessageBytesMax);
  }
  if (frame_type(header) == FrameType::kEager &&
      (header.message_bytes != header.payload_bytes || header.offset != 0)) {
    return fmt::format("an eager frame carries {} bytes at offset {} of a message of {}",
                       header.payload_bytes, header.offset, header.message_bytes);
  }
  if (frame_type(header) == FrameType::kChunk &&
      (header.offset > header.message_bytes ||
       header.payload_bytes > header.message_bytes - header.offset ||
       (header.payload_bytes == 0 && header.message_bytes != 0))) {
    return fmt::format("chunk {} of {} bytes at offset {} does not fit a message of {}",
                       header.chunk, header.payload_bytes, header.offset, header.message_bytes);
  }
  return std::nullopt;
}

}  // namespace

Tag frame_tag(const FrameHeader& header) {
  return {header.operation, header.message};
}

OperationInfo frame_info(const FrameHeader& header) {
  return {.signature = header.signature,
          .kind = header.kind,
          .dtype = header.dtype,
          .red_op = header.red_op,
          .root = header.root,
          .count = header.count};
}

FrameHeader make_header(FrameType type, const Tag& tag, const OperationInfo& info) {
  FrameHeader header;
  header.type = static_cast<std::uint8_t>(type);
  header.operation = tag.operation;
  header.message = tag.message;
  header.signature = info.signature;
  header.kind = info.kind;
  header.dtype = info.dtype;
  header.red_op = info.red_op;
  header.root = info.root;
  header.count = info.count;
  return header;
}

std::optional<std::string> header_fault(const FrameHeader& header) {
  if (header.magic == kFrameMagicSwapped) {
    return "its byte order is the other one: this rank and the peer must have the same endianness";
  }
  if (header.magic != kFrameMagic) {
    return fmt::format("the magic number is {:#010x}, expected {:#010x}", header.magic,
                       kFrameMagic);
  }
  if (header.version != kWireVersion) {
    return fmt::format("the wire version is {}, this rank speaks {}", header.version, kWireVersion);
  }
  if (header.header_bytes != kHeaderBytes) {
    return fmt::format("the header says {} bytes, expected {}", header.header_bytes, kHeaderBytes);
  }
  if ((header.flags & kFlagChecked) != 0 && !header_check_holds(header)) {
    return "the header's checksum does not match: bytes were changed on the way";
  }
  if (header.type == 0 || header.type > kFrameTypeLast) {
    return fmt::format("frame type {} is unknown", header.type);
  }
  if ((header.flags & ~kFlagsAll) != 0) {
    return fmt::format("flags {:#x} are unknown", header.flags);
  }
  const PayloadBounds bounds = payload_bounds(frame_type(header));
  if (header.payload_bytes < bounds.least || header.payload_bytes > bounds.most) {
    return fmt::format("a frame of type {} carries {} bytes, expected {} to {}", header.type,
                       header.payload_bytes, bounds.least, bounds.most);
  }
  return message_fault(header);
}

void seal(FrameHeader* header, std::span<const std::byte> payload) {
  header->flags |= kFlagChecked;
  header->payload_check = check_of(payload.data(), payload.size());
  header->header_check = header_check_of(*header);
}

bool header_check_holds(const FrameHeader& header) {
  return header.header_check == header_check_of(header);
}

bool payload_check_holds(const FrameHeader& header, std::span<const std::byte> payload) {
  return (header.flags & kFlagChecked) == 0 ||
         header.payload_check == check_of(payload.data(), payload.size());
}

std::optional<std::string> hello_fault(const Hello& ours, const Hello& theirs) {
  const auto both = [&](const char* what, std::uint64_t mine, std::uint64_t yours) {
    return fmt::format("Rank {} has {} {:#x} but rank {} has {:#x}; all ranks must have the same.",
                       ours.sender, what, mine, theirs.sender, yours);
  };
  if (theirs.byte_order != ours.byte_order) {
    return both("byte order", ours.byte_order, theirs.byte_order);
  }
  if (theirs.version != ours.version) {
    return both("wire version", ours.version, theirs.version);
  }
  if (theirs.config != ours.config) {
    return both("configuration hash", ours.config, theirs.config) +
           " Compare the ISTHMUS_ variables and the library of both.";
  }
  if (theirs.ranks != ours.ranks) {
    return both("world size", ours.ranks, theirs.ranks);
  }
  if (theirs.sender >= ours.ranks || theirs.sender == ours.sender) {
    return fmt::format("Rank {} of {} was called by one that says it is rank {}.", ours.sender,
                       ours.ranks, theirs.sender);
  }
  if (theirs.expected != ours.sender) {
    return fmt::format("Rank {} wanted rank {} but reached rank {}: addresses are mixed up.",
                       theirs.sender, theirs.expected, ours.sender);
  }
  if (theirs.eager_bytes != ours.eager_bytes || theirs.chunk_bytes != ours.chunk_bytes ||
      theirs.eager_quota != ours.eager_quota) {
    return fmt::format(
        "Rank {} sends eager up to {} bytes, chunks of {} and has a quota of {}, but rank {} has "
        "{}, {} and {}; all ranks must run the same build.",
        ours.sender, ours.eager_bytes, ours.chunk_bytes, ours.eager_quota, theirs.sender,
        theirs.eager_bytes, theirs.chunk_bytes, theirs.eager_quota);
  }
  return std::nullopt;
}

}  // namespace isthmus::tcp
