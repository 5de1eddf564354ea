#include "transport/notice_codec.h"

#include <cstring>

#include <fmt/format.h>

namespace isthmus {

std::string encode_notice(const Notice& notice) {
  std::string out(kNoticeFixedBytes, '\0');
  out[0] = static_cast<char>(notice.kind);
  out[1] = static_cast<char>(notice.code);
  std::memcpy(&out[4], &notice.group, 4);
  std::memcpy(&out[8], &notice.sequence, 4);
  std::memcpy(&out[12], &notice.culprit, 4);
  out.append(notice.text, 0, kNoticeTextMax);
  return out;
}

Result<Notice> decode_notice(std::span<const std::byte> bytes) {
  const auto broken = [](std::string what) {
    return Error{.code = Code::kProtocol, .message = "A notice is broken: " + std::move(what)};
  };
  if (bytes.size() < kNoticeFixedBytes || bytes.size() > kNoticeFixedBytes + kNoticeTextMax) {
    return broken(fmt::format("it has {} bytes.", bytes.size()));
  }
  const auto kind = std::to_integer<std::uint8_t>(bytes[0]);
  const auto code = std::to_integer<std::uint8_t>(bytes[1]);
  if (kind < static_cast<std::uint8_t>(Notice::Kind::kRefused) ||
      kind > static_cast<std::uint8_t>(Notice::Kind::kWaiting) ||
      code > static_cast<std::uint8_t>(Code::kInternal)) {
    return broken(fmt::format("kind {} with code {} is unknown.", kind, code));
  }
  Notice notice;
  notice.kind = static_cast<Notice::Kind>(kind);
  notice.code = static_cast<Code>(code);
  std::memcpy(&notice.group, &bytes[4], 4);
  std::memcpy(&notice.sequence, &bytes[8], 4);
  std::memcpy(&notice.culprit, &bytes[12], 4);
  notice.text.resize(bytes.size() - kNoticeFixedBytes);
  std::memcpy(notice.text.data(), bytes.data() + kNoticeFixedBytes, notice.text.size());
  return notice;
}

}  // namespace isthmus
