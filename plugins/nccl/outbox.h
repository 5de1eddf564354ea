#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <sys/socket.h>
#include <sys/uio.h>

#include "plugins/nccl/frame.h"

namespace isthmus::nccl {

// Frames on their way into one socket: several messages leave by one system call, headers and
// payloads of all of them together. Owns nothing: payloads stay at the caller's until they are
// gone. Thread rule: that of its comm.
class Outbox {
 public:
  struct Entry {
    FrameHeader header;
    const std::byte* data = nullptr;
  };

  enum class Outcome : std::uint8_t {
    kAll,   // nothing is left
    kFull,  // the socket takes no more now
    kLost,  // the connection is broken: see error()
  };

  bool empty() const { return count_ == 0; }

  // Not written yet, headers included.
  std::size_t bytes() const { return bytes_; }

  // Whether more frames may be added to those of the next system call.
  bool accepts() const { return count_ < kEntries && bytes_ < kBatchBytes; }

  void push(const FrameHeader& header, const std::byte* data) {
    entries_[(head_ + count_) % kEntries] = {header, data};
    ++count_;
    bytes_ += sizeof(FrameHeader) + header.payload_bytes;
  }

  void clear() {
    count_ = 0;
    bytes_ = 0;
    written_ = 0;
  }

  int error() const { return error_; }

  // One sendmsg(); `gone(entry)` is called for each frame that the kernel has taken whole. Adds
  // what it took to `bytes`.
  template <typename Gone>
  Outcome write(int fd, std::size_t* bytes, Gone&& gone) {
    std::array<iovec, 2 * kEntries> parts;
    const std::size_t count = fill(&parts);
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t took = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (took < 0) {
      error_ = errno;
      const bool later = error_ == EAGAIN || error_ == EINTR || error_ == ENOBUFS;
      return later ? Outcome::kFull : Outcome::kLost;
    }
    *bytes += static_cast<std::size_t>(took);
    bytes_ -= static_cast<std::size_t>(took);
    written_ += static_cast<std::size_t>(took);
    while (count_ > 0) {
      const Entry& first = entries_[head_];
      const std::size_t whole = sizeof(FrameHeader) + first.header.payload_bytes;
      if (written_ < whole) {
        return Outcome::kFull;
      }
      written_ -= whole;
      gone(first);
      head_ = (head_ + 1) % kEntries;
      --count_;
    }
    return Outcome::kAll;
  }

 private:
  // 16 small messages a call make the call's cost small beside their own.
  static constexpr unsigned kEntries = 16;
  // Further frames are not added beyond: what a socket takes at once is less.
  static constexpr std::size_t kBatchBytes = 1 << 20;

  std::size_t fill(std::array<iovec, 2 * kEntries>* parts) {
    std::size_t count = 0;
    std::size_t skip = written_;
    for (unsigned i = 0; i < count_; ++i) {
      Entry& entry = entries_[(head_ + i) % kEntries];
      const std::size_t of_header = std::min(skip, sizeof(FrameHeader));
      if (of_header < sizeof(FrameHeader)) {
        (*parts)[count++] = {reinterpret_cast<std::byte*>(&entry.header) + of_header,
                             sizeof(FrameHeader) - of_header};
      }
      const std::size_t of_data = skip - of_header;
      if (of_data < entry.header.payload_bytes) {
        // sendmsg() only reads, but iovec has no const.
        (*parts)[count++] = {const_cast<std::byte*>(entry.data) + of_data,
                             entry.header.payload_bytes - of_data};
      }
      skip = 0;
    }
    return count;
  }

  std::array<Entry, kEntries> entries_{};
  unsigned head_ = 0;
  unsigned count_ = 0;
  std::size_t bytes_ = 0;    // of all entries, without what is written
  std::size_t written_ = 0;  // of the first entry
  int error_ = 0;
};

}  // namespace isthmus::nccl
