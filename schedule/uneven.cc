#include "schedule/uneven.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace isthmus {

Uneven::Uneven(const Schedule& schedule, std::size_t piece_bytes,
               std::vector<std::size_t> input_starts, std::vector<std::size_t> output_starts) {
  const OpTraits& traits = op_traits(schedule.op);
  const Partition& partition = schedule.partition;
  ISTHMUS_CHECK(traits.ranked && input_starts.size() == partition.blocks + 1 &&
                    output_starts.size() == partition.blocks + 1,
                "blocks of their own lengths are one per rank");
  const std::uint32_t own = schedule.rank << partition.pieces_log2;
  input_ = {std::move(input_starts), traits.input_block ? own : 0, partition.pieces_log2,
            piece_bytes};
  output_ = {std::move(output_starts), traits.output_block ? own : 0, partition.pieces_log2,
             piece_bytes};
}

std::size_t Uneven::Side::offset(std::uint32_t mark) const {
  const std::uint32_t block = mark >> pieces_log2;
  const std::uint32_t piece = mark & ((1U << pieces_log2) - 1);
  if (piece == 0) {
    return starts[block];
  }
  return std::min(starts[block] + piece * piece_bytes, starts[block + 1]);
}

}  // namespace isthmus
