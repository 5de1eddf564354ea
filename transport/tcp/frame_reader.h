#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/tcp/wire.h"

namespace isthmus::tcp {

// Cuts what arrives on a socket into frames. Pull style: next() reads as little as it needs, and
// payloads go straight to where place() says, so that a chunk is copied by the kernel alone.
// Memory: one buffer of kStagingBytes.
class FrameReader {
 public:
  enum class Event : std::uint8_t {
    kDry,     // nothing more now
    kHeader,  // header() is new: place() must follow
    kFrame,   // the payload of header() is complete
    kClosed,  // the peer closed, or sys_errno() says what failed
    kFault,   // the bytes are no frame: fault() says why
  };

  FrameReader();

  Event next(int fd);

  const FrameHeader& header() const { return header_; }

  // Where the payload of header() goes; null drops it. May be called again until kFrame: the rest
  // then goes to the new place (null only).
  void place(std::byte* where);

  // Bytes of the current payload that are still to come.
  std::size_t payload_left() const { return left_; }

  // After kDry the socket is not read again before this is called: there is news of it.
  void wake(bool hung_up) {
    drained_ = false;
    hung_up_ |= hung_up;
  }

  // Reads headers alone, not what follows: chunks whose place is known are expected.
  void set_bulk(bool bulk) { bulk_ = bulk; }

  std::uint64_t bytes_read() const { return bytes_read_; }

  int sys_errno() const { return sys_errno_; }

  const std::string& fault() const { return fault_; }

 private:
  enum class Phase : std::uint8_t { kHeader, kPlacing, kPayload, kOver };

  static constexpr std::size_t kStagingBytes =
      16384;  // an eager frame of the largest size and more

  std::size_t staged() const { return end_ - begin_; }

  Event take_header();
  Event finish_payload();
  void take_staged_payload();
  bool read_more(int fd);
  Event stopped();

  std::unique_ptr<std::byte[]> staging_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  FrameHeader header_;
  Phase phase_ = Phase::kHeader;
  std::byte* place_ = nullptr;  // of the whole payload
  std::size_t left_ = 0;
  bool drained_ = false;
  bool hung_up_ = false;
  bool bulk_ = false;
  bool closed_ = false;
  int sys_errno_ = 0;
  std::uint64_t bytes_read_ = 0;
  std::string fault_;
};

}  // namespace isthmus::tcp
