#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "transport/endpoint.h"
#include "transport/shm/lane_memory.h"

namespace isthmus::shm {

// The ring of one direction between two ranks: cells with a frame each, and a ring of data that
// frames may refer to. One writer, one reader, no lock, no system call. A frame is published by one
// store into its cell, so a writer that dies leaves whole frames only.
//
// Memory order: the stores that publish (a cell's word, `consumed`) and the loads that look for
// them are sequentially consistent, so that "publish, then look whether the other side sleeps"
// against "say that I sleep, then look for frames" never both miss.

enum class FrameType : std::uint8_t {
  kInline = 1,  // a whole message of at most 48 bytes in the cell, with the info of the last kEager
  kEager = 2,   // a whole message
  kRequest = 3,  // I have a message of message_bytes for this tag
  kCredit = 4,   // I have a buffer of message_bytes for this tag: send
  kChunk = 5,    // bytes of a message from `offset` on
  kRefuse = 6,   // sizes disagree, see the flags
  kNotice = 7,   // data is an encoded Notice
  kGoodbye = 8,  // the sender leaves; nothing follows
};

// Flags of kRefuse, in Frame::small.
inline constexpr std::uint8_t kRefusesEager = 1;  // the message came without asking
inline constexpr std::uint8_t kRefusesRecv = 2;   // the receiver's buffer is refused
inline constexpr std::uint8_t kDropped = 4;       // the receiver had cancelled the operation

// What a cell carries of every frame but kInline.
struct FrameBody {
  OperationInfo info;
  std::uint64_t message_bytes = 0;
  std::uint64_t offset = 0;
  std::uint32_t data_at = 0;  // in the data ring
  std::uint32_t data_bytes = 0;
};

static_assert(sizeof(FrameBody) == kLinePayloadBytes);

// A frame as its reader has copied it out: the peer cannot change it any more.
struct Frame {
  FrameType type = FrameType::kGoodbye;
  std::uint8_t small = 0;  // bytes of kInline, flags of kRefuse
  Tag tag;
  std::array<std::byte, kLinePayloadBytes> payload{};

  FrameBody body() const {
    FrameBody out;
    std::memcpy(&out, payload.data(), sizeof out);
    return out;
  }
};

// A cell's word: type, small, stamp, message. The stamp is the lap of the ring, from 1 on, so a
// reader tells a new frame from what the lap before left there.
constexpr std::uint16_t lap_stamp(std::uint64_t index) {
  return static_cast<std::uint16_t>(1 + (index / kLaneCells) % 0xffff);
}

constexpr std::uint64_t frame_word(FrameType type, std::uint8_t small, std::uint16_t stamp,
                                   std::uint32_t message) {
  return static_cast<std::uint64_t>(type) | (std::uint64_t{small} << 8) |
         (std::uint64_t{stamp} << 16) | (std::uint64_t{message} << 32);
}

// The writing end. Bounds: kLaneCells - 1 frames and data_bytes of data on the way; one more cell
// is kept for the goodbye.
class RingWriter {
 public:
  // out: this rank's piece for the peer; back: the peer's piece for this rank.
  RingWriter(const LaneView& out, const LaneView& back) : out_(out), back_(back) {}

  // Room for one more frame with so much data, at most a quarter of the ring.
  bool room(std::size_t data_bytes) {
    return fits(data_bytes, kLaneCells - 1) || (refresh() && fits(data_bytes, kLaneCells - 1));
  }

  bool room_for_goodbye() { return fits(0, kLaneCells) || (refresh() && fits(0, kLaneCells)); }

  // After room(): where the data of the next frame goes.
  std::byte* place(std::size_t bytes, FrameBody* body) {
    const std::uint64_t at = start_of(bytes) % out_.data_bytes;
    tail_ = start_of(bytes) + align(bytes);
    body->data_at = static_cast<std::uint32_t>(at);
    body->data_bytes = static_cast<std::uint32_t>(bytes);
    return out_.data + at;
  }

  // After room(): publishes a frame.
  void put(FrameType type, std::uint8_t small, const Tag& tag, const void* payload,
           std::size_t bytes) {
    LaneCell& cell = out_.cells[written_ % kLaneCells];
    cell.operation = tag.operation;
    if (bytes != 0) {
      std::memcpy(cell.payload.data(), payload, bytes);
    }
    ends_[written_ % kLaneCells] = tail_;
    cell.word.store(frame_word(type, small, lap_stamp(written_), tag.message),
                    std::memory_order_seq_cst);
    ++written_;
  }

  // The peer's counter cannot be: nothing is written any more.
  bool corrupt() const { return corrupt_; }

 private:
  static constexpr std::uint64_t align(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

  // Data of one frame is contiguous: what does not fit before the end of the ring starts over.
  std::uint64_t start_of(std::size_t bytes) const {
    const std::uint64_t at = tail_ % out_.data_bytes;
    return at + bytes > out_.data_bytes ? tail_ + (out_.data_bytes - at) : tail_;
  }

  bool fits(std::size_t data_bytes, std::uint32_t cells) const {
    return written_ - consumed_ < cells &&
           (data_bytes == 0 || start_of(data_bytes) + align(data_bytes) - head_ <= out_.data_bytes);
  }

  // Looks how far the peer has read. False when nothing changed.
  bool refresh() {
    const std::uint64_t consumed = back_.header->consumed.load(std::memory_order_seq_cst);
    if (consumed == consumed_) {
      return false;
    }
    if (consumed - consumed_ > written_ - consumed_) {
      corrupt_ = true;
      return false;
    }
    consumed_ = consumed;
    head_ = ends_[(consumed - 1) % kLaneCells];
    return true;
  }

  LaneView out_;
  LaneView back_;
  std::uint64_t written_ = 0;   // frames
  std::uint64_t consumed_ = 0;  // of them, as last seen
  std::uint64_t tail_ = 0;      // data bytes handed out, with the gaps
  std::uint64_t head_ = 0;      // of them, free again
  bool corrupt_ = false;
  std::array<std::uint64_t, kLaneCells> ends_{};  // tail_ after each frame
};

// The reading end. Checks whatever it returns against the bounds of the memory.
class RingReader {
 public:
  // in: the peer's piece for this rank; own: this rank's piece for the peer.
  RingReader(const LaneView& in, const LaneView& own) : in_(in), own_(own) {}

  // Is there a frame, or a fault to find?
  bool ready() const { return word() != resting_; }

  // Copies the next frame out. False: none, or the ring is broken and fault() says how.
  bool next(Frame* frame) {
    const std::uint64_t word = this->word();
    const auto stamp = static_cast<std::uint16_t>(word >> 16);
    if (stamp != lap_stamp(read_)) {
      if (word != resting_) {
        fault_ = "a cell holds neither the next frame nor the one before";
      }
      return false;
    }
    const LaneCell& cell = in_.cells[read_ % kLaneCells];
    frame->type = static_cast<FrameType>(word & 0xff);
    frame->small = static_cast<std::uint8_t>(word >> 8);
    frame->tag = {.operation = cell.operation, .message = static_cast<std::uint32_t>(word >> 32)};
    frame->payload = cell.payload;
    words_[read_ % kLaneCells] = word;
    return true;
  }

  // The data of a frame, empty when it is not within the ring.
  std::optional<std::span<const std::byte>> data(const FrameBody& body) const {
    if (body.data_at > in_.data_bytes || body.data_bytes > in_.data_bytes - body.data_at) {
      return std::nullopt;
    }
    return std::span<const std::byte>(in_.data + body.data_at, body.data_bytes);
  }

  // The last frame is done with.
  void release() {
    ++read_;
    resting_ = words_[read_ % kLaneCells];
  }

  // Gives the room of released frames back to the writer.
  void publish() { own_.header->consumed.store(read_, std::memory_order_seq_cst); }

  // Does the peer wait for room? After publish().
  bool peer_blocked() const { return in_.header->blocked.load(std::memory_order_seq_cst) != 0; }

  const std::optional<std::string>& fault() const { return fault_; }

 private:
  std::uint64_t word() const {
    return in_.cells[read_ % kLaneCells].word.load(std::memory_order_seq_cst);
  }

  LaneView in_;
  LaneView own_;
  std::uint64_t read_ = 0;     // frames
  std::uint64_t resting_ = 0;  // what the next cell holds until its frame comes
  std::optional<std::string> fault_;
  std::array<std::uint64_t, kLaneCells> words_{};  // of the lap before
};

}  // namespace isthmus::shm
