#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/fd.h"
#include "plugins/nccl/frame.h"

namespace isthmus::nccl {

// What came of one flow and has no place yet: headers, small payloads, the head of a message that
// nobody has posted a buffer for. Bounded; the rest stays in the socket.
class Inbox {
 public:
  static constexpr std::size_t kBytes = 16 << 10;

  std::size_t size() const { return end_ - begin_; }

  const std::byte* data() const { return bytes_.data() + begin_; }

  void drop(std::size_t bytes) {
    begin_ += bytes;
    if (begin_ == end_) {
      begin_ = 0;
      end_ = 0;
    }
  }

  // Where the next bytes go; moves what is there to the front when little room is left.
  std::byte* tail() {
    if (begin_ > 0 && kBytes - end_ < kBytes / 2) {
      std::memmove(bytes_.data(), data(), size());
      end_ = size();
      begin_ = 0;
    }
    return bytes_.data() + end_;
  }

  std::size_t room() const { return kBytes - end_; }

  void grown(std::size_t bytes) { end_ += bytes; }

 private:
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::array<std::byte, kBytes> bytes_;  // not initialised: only [begin_, end_) is read
};

}  // namespace isthmus::nccl
