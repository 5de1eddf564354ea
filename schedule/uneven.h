#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace isthmus {

// The byte layout of a run whose ranks' blocks differ in length; a Geometry of the largest block
// goes beside it and gives the units. `starts` has the first byte of each block and, last, the end.
//   all_gather, reduce_scatter, gather, scatter: one layout, of the whole data, known to all ranks
//   all_to_all: a layout of this rank's input and one of its output; whole blocks only
// Thread rule: immutable.
class Uneven {
 public:
  Uneven(const Schedule& schedule, std::size_t piece_bytes, std::vector<std::size_t> input_starts,
         std::vector<std::size_t> output_starts);

  // Byte offset of a place of the caller's buffer in that buffer.
  std::size_t input_offset(std::uint32_t at) const { return input_.place(at); }

  std::size_t output_offset(std::uint32_t at) const { return output_.place(at); }

  // Bytes that a step covers: what arrives is laid out as the output, the rest as the input.
  std::size_t length(const Step& step) const {
    const Side& side = step.kind == StepKind::kRecv ? output_ : input_;
    return side.offset(step.end) - side.offset(step.begin);
  }

 private:
  struct Side {
    std::vector<std::size_t> starts;
    std::uint32_t first = 0;  // mark at which the caller's buffer begins
    std::uint32_t pieces_log2 = 0;
    std::size_t piece_bytes = 0;

    std::size_t offset(std::uint32_t mark) const;

    std::size_t place(std::uint32_t at) const { return offset(first + at) - offset(first); }
  };

  Side input_;
  Side output_;
};

}  // namespace isthmus
