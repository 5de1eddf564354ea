#include "plugins/nccl/handle.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace isthmus::nccl {
namespace {

constexpr std::uint32_t kHandleMagic = 0x48545349;  // "ISTH"
constexpr std::size_t kTokenAt = kHandleBytes - 8;

struct Fixed {
  std::uint32_t magic = kHandleMagic;
  std::uint16_t version = kProtocolVersion;
  std::uint16_t port = 0;
  Nonce nonce;
  std::uint64_t host = 0;
  std::uint8_t count = 0;
  std::uint8_t reserved[7] = {};
};

static_assert(sizeof(Fixed) == 40);

constexpr std::uint8_t kSix = 0x80;
constexpr std::uint8_t kLoopback = 0x40;
constexpr std::uint8_t kInterfaceMask = 0x3f;

std::size_t ip_bytes(std::uint8_t flags) {
  return (flags & kSix) != 0 ? 16 : 4;
}

}  // namespace

void encode_handle(const Handle& handle, std::span<std::byte, kHandleBytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  Fixed fixed;
  fixed.nonce = handle.nonce;
  fixed.host = handle.address.host;
  std::size_t at = sizeof(Fixed);
  for (const std::uint8_t family : {std::uint8_t{4}, std::uint8_t{6}}) {
    for (const tcp::Candidate& each : handle.address.candidates) {
      const std::size_t bytes = family == 4 ? 4 : 16;
      if (each.family != family || at + 2 + bytes > kTokenAt || each.interface > kInterfaceMask) {
        continue;
      }
      out[at] = static_cast<std::byte>((family == 6 ? kSix : 0) | (each.loopback ? kLoopback : 0) |
                                       each.interface);
      out[at + 1] = std::byte{each.prefix};
      std::memcpy(&out[at + 2], each.ip.data(), bytes);
      at += 2 + bytes;
      fixed.port = each.port;
      ++fixed.count;
    }
  }
  std::memcpy(out.data(), &fixed, sizeof(fixed));
}

Result<Handle> decode_handle(std::span<const std::byte, kHandleBytes> bytes) {
  Fixed fixed;
  std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  if (fixed.magic != kHandleMagic) {
    return Error{
        .code = Code::kMismatch,
        .message = fmt::format(
            "The handle of the peer begins with {:#010x}, expected {:#010x}: the peer does "
            "not run the isthmus plug-in. Set NCCL_NET=isthmus on all ranks.",
            fixed.magic, kHandleMagic)};
  }
  if (fixed.version != kProtocolVersion) {
    return Error{
        .code = Code::kMismatch,
        .message = fmt::format("The peer speaks version {} of isthmus's NCCL protocol, "
                               "this process version {}. Install one version on all hosts.",
                               fixed.version, kProtocolVersion)};
  }
  Handle out;
  out.nonce = fixed.nonce;
  out.address.host = fixed.host;
  std::size_t at = sizeof(Fixed);
  for (unsigned i = 0; i < fixed.count; ++i) {
    if (at + 2 > kTokenAt) {
      break;
    }
    const auto flags = std::to_integer<std::uint8_t>(bytes[at]);
    if (at + 2 + ip_bytes(flags) > kTokenAt) {
      break;
    }
    tcp::Candidate candidate;
    candidate.family = (flags & kSix) != 0 ? 6 : 4;
    candidate.loopback = (flags & kLoopback) != 0;
    candidate.interface = flags & kInterfaceMask;
    candidate.prefix = std::to_integer<std::uint8_t>(bytes[at + 1]);
    candidate.port = fixed.port;
    std::memcpy(candidate.ip.data(), &bytes[at + 2], ip_bytes(flags));
    out.address.candidates.push_back(candidate);
    at += 2 + ip_bytes(flags);
  }
  if (out.address.candidates.size() != fixed.count || fixed.count == 0 || fixed.port == 0) {
    return Error{.code = Code::kProtocol,
                 .message = fmt::format("The handle of the peer claims {} addresses at port {}, {} "
                                        "can be read.",
                                        fixed.count, fixed.port, out.address.candidates.size())};
  }
  return out;
}

std::uint64_t connect_token(std::span<const std::byte, kHandleBytes> bytes) {
  std::uint64_t token = 0;
  std::memcpy(&token, &bytes[kTokenAt], sizeof(token));
  return token;
}

void set_connect_token(std::uint64_t token, std::span<std::byte, kHandleBytes> bytes) {
  std::memcpy(&bytes[kTokenAt], &token, sizeof(token));
}

}  // namespace isthmus::nccl
