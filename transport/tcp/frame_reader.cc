#include "transport/tcp/frame_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <sys/uio.h>

namespace isthmus::tcp {

FrameReader::FrameReader() : staging_(std::make_unique_for_overwrite<std::byte[]>(kStagingBytes)) {}

FrameReader::Event FrameReader::next(int fd) {
  for (;;) {
    switch (phase_) {
      case Phase::kOver:
        return fault_.empty() ? Event::kClosed : Event::kFault;
      case Phase::kHeader:
        if (staged() >= kHeaderBytes) {
          return take_header();
        }
        break;
      case Phase::kPlacing:
        ISTHMUS_CHECK(false, "place() must follow a header");
        break;
      case Phase::kPayload:
        take_staged_payload();
        if (left_ == 0) {
          return finish_payload();
        }
        break;
    }
    if (!read_more(fd)) {
      return stopped();
    }
  }
}

FrameReader::Event FrameReader::take_header() {
  std::memcpy(&header_, staging_.get() + begin_, kHeaderBytes);
  begin_ += kHeaderBytes;
  if (std::optional<std::string> fault = header_fault(header_)) {
    fault_ = std::move(*fault);
    phase_ = Phase::kOver;
    return Event::kFault;
  }
  phase_ = Phase::kPlacing;
  left_ = header_.payload_bytes;
  place_ = nullptr;
  return Event::kHeader;
}

void FrameReader::place(std::byte* where) {
  if (phase_ == Phase::kPlacing) {
    phase_ = Phase::kPayload;
  } else {
    ISTHMUS_CHECK(where == nullptr, "a payload that has begun can only be dropped");
  }
  place_ = where;
}

FrameReader::Event FrameReader::finish_payload() {
  phase_ = Phase::kHeader;
  if (place_ != nullptr && !payload_check_holds(header_, {place_, header_.payload_bytes})) {
    fault_ = "the payload's checksum does not match: bytes were changed on the way";
    phase_ = Phase::kOver;
    return Event::kFault;
  }
  return Event::kFrame;
}

void FrameReader::take_staged_payload() {
  const std::size_t bytes = std::min(staged(), left_);
  if (bytes == 0) {
    return;
  }
  if (place_ != nullptr) {
    std::memcpy(place_ + (header_.payload_bytes - left_), staging_.get() + begin_, bytes);
  }
  begin_ += bytes;
  left_ -= bytes;
}

// True when bytes came. At this point the staging buffer holds less than a header, or nothing when
// a payload is being read.
bool FrameReader::read_more(int fd) {
  if (closed_ || (drained_ && !hung_up_)) {
    return false;
  }
  if (begin_ > 0) {
    std::memmove(staging_.get(), staging_.get() + begin_, staged());
    end_ -= begin_;
    begin_ = 0;
  }
  std::array<iovec, 2> parts{};
  int count = 0;
  std::size_t direct = 0;
  if (phase_ == Phase::kPayload && place_ != nullptr) {
    direct = left_;
    parts[0] = {place_ + (header_.payload_bytes - left_), left_};
    count = 1;
  }
  const bool dropping = phase_ == Phase::kPayload && place_ == nullptr;
  const std::size_t room = bulk_ && !dropping ? kHeaderBytes : kStagingBytes;
  parts[static_cast<std::size_t>(count)] = {staging_.get() + end_, room - std::min(room, end_)};
  ++count;
  const std::size_t asked = direct + room - end_;
  ssize_t got = 0;
  do {
    got = count == 1 ? ::recv(fd, parts[0].iov_base, parts[0].iov_len, 0)
                     : ::readv(fd, parts.data(), count);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    drained_ = true;
    if (got == 0 || errno != EAGAIN) {
      sys_errno_ = got == 0 ? 0 : errno;
      closed_ = true;
    }
    return false;
  }
  const auto bytes = static_cast<std::size_t>(got);
  bytes_read_ += bytes;
  drained_ = bytes < asked;
  left_ -= std::min(bytes, direct);
  end_ += bytes - std::min(bytes, direct);
  return true;
}

FrameReader::Event FrameReader::stopped() {
  if (!closed_) {
    return Event::kDry;
  }
  phase_ = Phase::kOver;
  return Event::kClosed;
}

}  // namespace isthmus::tcp
