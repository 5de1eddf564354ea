#pragma once

#include <cstdint>
#include <utility>

#include "base/fd.h"
#include "transport/tcp/frame_reader.h"
#include "transport/tcp/frame_writer.h"
#include "transport/tcp/messages.h"

namespace isthmus::tcp {

// One connection of a lane. The first of its lane's list carries everything, the others chunks
// alone, so that all else stays in order. Owned by its lane, which closes `fd` when it is lost and
// drops the object at its next pump().
struct Flow {
  Flow(Fd connection, std::uint8_t flow_number) : fd(std::move(connection)), number(flow_number) {}

  Fd fd;
  std::uint8_t number;
  bool blocked = false;       // the socket took no more
  bool over = false;          // nothing more is read: the peer said goodbye, or is gone
  bool farewell = false;      // it said goodbye
  bool write_failed = false;  // what the peer said last is still to be read
  bool numbered = false;      // the frame being read has a number
  bool skip = false;          // the frame being read came before
  FrameReader reader;
  FrameWriter writer;
  Incoming* current = nullptr;  // where the payload of the frame being read goes; null: dropped
};

}  // namespace isthmus::tcp
