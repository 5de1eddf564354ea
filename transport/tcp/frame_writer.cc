#include "transport/tcp/frame_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <sys/uio.h>

namespace isthmus::tcp {

void FrameWriter::add(const FrameHeader& header, std::span<const std::byte> payload,
                      Outgoing* message) {
  ISTHMUS_CHECK(count_ < kFramesMax, "the batch is full");
  Frame& frame = frames_[count_++];
  frame.header = header;
  frame.payload = payload.data();
  frame.payload_bytes = payload.size();
  frame.message = message;
  bytes_ += kHeaderBytes + payload.size();
}

void FrameWriter::add_owned(const FrameHeader& header, std::unique_ptr<std::byte[]> payload,
                            std::size_t bytes) {
  add(header, {payload.get(), bytes}, nullptr);
  frames_[count_ - 1].owned = std::move(payload);
}

FrameWriter::Outcome FrameWriter::write_once(int fd) {
  std::array<iovec, 2 * kFramesMax> parts{};
  std::size_t used = 0;
  std::size_t skip = written_;
  const auto push = [&](const void* data, std::size_t bytes) {
    const std::size_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (bytes > skipped) {
      // sendmsg() takes a pointer to mutable bytes and only reads them.
      auto* at = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + skipped;
      parts[used++] = {at, bytes - skipped};
    }
  };
  for (std::size_t i = done_; i < count_; ++i) {
    push(&frames_[i].header, kHeaderBytes);
    push(frames_[i].payload, frames_[i].payload_bytes);
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = used;
  ssize_t put = 0;
  do {
    put = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (put < 0 && errno == EINTR);
  if (put < 0) {
    if (errno == EAGAIN) {
      return Outcome::kBlocked;
    }
    sys_errno_ = errno;
    return Outcome::kFailed;
  }
  written_ += static_cast<std::size_t>(put);
  while (done_ < count_ && written_ >= kHeaderBytes + frames_[done_].payload_bytes) {
    written_ -= kHeaderBytes + frames_[done_].payload_bytes;
    ++done_;
  }
  return Outcome::kWritten;
}

bool FrameWriter::detach(Outgoing* message) {
  bool rest = false;
  std::size_t kept = done_;
  for (std::size_t i = done_; i < count_; ++i) {
    Frame& frame = frames_[i];
    if (frame.message == message) {
      const bool begun = i == done_ && written_ > 0;
      if (!begun) {
        bytes_ -= kHeaderBytes + frame.payload_bytes;
        frame = Frame();
        continue;
      }
      // Bytes before written_ are not read again; the copy keeps the layout of the whole payload.
      const std::size_t sent = written_ > kHeaderBytes ? written_ - kHeaderBytes : 0;
      auto copy = std::make_unique_for_overwrite<std::byte[]>(frame.payload_bytes + 1);
      if (frame.payload_bytes > sent) {
        std::memcpy(copy.get() + sent, frame.payload + sent, frame.payload_bytes - sent);
      }
      frame.payload = copy.get();
      frame.owned = std::move(copy);
      frame.message = nullptr;
      rest = true;
    }
    if (kept != i) {
      frames_[kept] = std::move(frame);
      frame = Frame();
    }
    ++kept;
  }
  count_ = kept;
  if (done_ == count_) {
    done_ = 0;
    count_ = 0;
    bytes_ = 0;
  }
  return rest;
}

void FrameWriter::clear() {
  for (Frame& frame : frames_) {
    frame = Frame();
  }
  done_ = 0;
  count_ = 0;
  written_ = 0;
  bytes_ = 0;
}

}  // namespace isthmus::tcp
