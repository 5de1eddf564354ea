#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "transport/endpoint.h"

namespace isthmus {

// A notice as bytes, in the byte order of the host: kind, code, two unused, group, sequence,
// culprit, then the text. decode_notice() trusts nothing and leaves `from` to its caller.
inline constexpr std::size_t kNoticeFixedBytes = 16;

std::string encode_notice(const Notice& notice);
Result<Notice> decode_notice(std::span<const std::byte> bytes);

}  // namespace isthmus
