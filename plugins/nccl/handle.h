#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "plugins/nccl/frame.h"
#include "transport/tcp/addresses.h"

namespace isthmus::nccl {

// Bytes of a handle in every ABI version (NCCL_NET_HANDLE_MAXSIZE).
inline constexpr std::size_t kHandleBytes = 128;

// What a listening comm tells to whoever shall call it; NCCL's bootstrap carries it.
struct Handle {
  Nonce nonce;
  tcp::Address address;  // at most what fits: 14 addresses of IPv4, or 4 of IPv6
};

// Writes all kHandleBytes. Addresses that do not fit are left out, from the end; IPv4 goes first.
void encode_handle(const Handle& handle, std::span<std::byte, kHandleBytes> out);
Result<Handle> decode_handle(std::span<const std::byte, kHandleBytes> bytes);

// connect() is called again and again with the same memory: the caller's own copy of the handle
// keeps in its last 8 bytes which call is under way. 0: none.
std::uint64_t connect_token(std::span<const std::byte, kHandleBytes> bytes);
void set_connect_token(std::uint64_t token, std::span<std::byte, kHandleBytes> bytes);

}  // namespace isthmus::nccl
