#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/tcp/messages.h"
#include "transport/tcp/wire.h"

namespace isthmus::tcp {

// Frames on their way into a socket: a small batch, written with one system call where it fits.
// Payloads are written from where they lie. Only the first frame can be partly written.
class FrameWriter {
 public:
  enum class Outcome : std::uint8_t {
    kWritten,  // the batch is empty
    kBlocked,  // the socket takes no more now
    kFailed,   // sys_errno() says why; nothing more can be written
  };

  static constexpr std::size_t kFramesMax = 8;
  // A batch takes no further frame once it holds this much: one big chunk, or many small frames.
  static constexpr std::size_t kBatchBytes = std::size_t{64} << 10;

  bool empty() const { return count_ == 0; }

  bool full() const { return count_ == kFramesMax || bytes_ >= kBatchBytes; }

  // Bytes of the batch, headers included.
  std::size_t bytes() const { return bytes_; }

  // `message` (may be null) is told apart in on_written; its frame count is kept by the caller.
  void add(const FrameHeader& header, std::span<const std::byte> payload, Outgoing* message);

  // As add(), with a payload that the writer keeps.
  void add_owned(const FrameHeader& header, std::unique_ptr<std::byte[]> payload,
                 std::size_t bytes);

  // Calls `on_written(Outgoing*)` for each frame with a message that is now in the socket.
  template <typename OnWritten>
  Outcome flush(int fd, OnWritten&& on_written) {
    while (count_ > 0) {
      const std::size_t before = done_;
      const Outcome outcome = write_once(fd);
      for (std::size_t i = before; i < done_; ++i) {
        if (frames_[i].message != nullptr) {
          on_written(frames_[i].message);
        }
        frames_[i] = Frame();
      }
      if (done_ == count_) {
        count_ = 0;
        done_ = 0;
        bytes_ = 0;
      }
      if (outcome != Outcome::kWritten) {
        return outcome;
      }
    }
    return Outcome::kWritten;
  }

  // Stops reading the buffer of `message`: unwritten frames are dropped, the rest of a partly
  // written one is copied (at most kChunkBytes) and will be sent, so that framing holds. True when
  // there is such a rest.
  bool detach(Outgoing* message);

  // Forgets everything; the socket is gone.
  void clear();

  // As clear(), and calls `on_dropped(Outgoing*)` for each frame with a message that was not wholly
  // written.
  template <typename OnDropped>
  void drop_all(OnDropped&& on_dropped) {
    std::array<Outgoing*, kFramesMax> messages{};
    std::transform(frames_.begin(), frames_.end(), messages.begin(),
                   [](const Frame& frame) { return frame.message; });
    const std::size_t first = done_;
    const std::size_t last = count_;
    clear();
    for (std::size_t i = first; i < last; ++i) {
      if (messages[i] != nullptr) {
        on_dropped(messages[i]);
      }
    }
  }

  int sys_errno() const { return sys_errno_; }

 private:
  struct Frame {
    FrameHeader header;
    const std::byte* payload = nullptr;
    std::size_t payload_bytes = 0;
    Outgoing* message = nullptr;
    std::unique_ptr<std::byte[]> owned;
  };

  // Advances done_ and written_ by what one call wrote.
  Outcome write_once(int fd);

  std::array<Frame, kFramesMax> frames_;
  std::size_t done_ = 0;     // frames before this one are written
  std::size_t count_ = 0;    // frames in all
  std::size_t written_ = 0;  // bytes of frame done_ that are written
  std::size_t bytes_ = 0;    // of all frames in the batch
  int sys_errno_ = 0;
};

}  // namespace isthmus::tcp
