#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "schedule/schedule.h"

namespace isthmus {

// The numbers that a perf program sends and expects back: small integers, so that every order of
// reduction gives the same bits. Element i of a rank's data depends on the rank and on (i + salt)
// modulo a prime period: a block that ended in the wrong place, or was left over from the run
// before (another salt), differs. Expected values follow the rules of kernels/reduce.h, each
// computed once a period. Ranks up to 1024. One thread.
class Pattern {
 public:
  static constexpr std::size_t kPeriod = 251;
  static constexpr int kFactor = 2;  // of PREMUL_SUM, on every rank

  Pattern(OpKind op, DType dtype, RedOp red_op, int ranks);

  // Elements [first, first + count) of a rank's input, where element numbers count through the
  // whole buffer.
  void fill(void* data, int rank, std::size_t first, std::size_t count, std::size_t salt) const;

  // Elements [first, first + count) of the reduction over all ranks that differ from the exact one.
  std::size_t count_wrong_reduced(const void* data, std::size_t first, std::size_t count,
                                  std::size_t salt) const;

  // As above, for data that must be a rank's own: of an operation that does not reduce.
  std::size_t count_wrong_of_rank(const void* data, int rank, std::size_t first, std::size_t count,
                                  std::size_t salt) const;

 private:
  // Two periods in a row, so that one copy or comparison runs on from any phase for a period.
  using Table = std::vector<std::byte>;

  std::size_t count_wrong(const Table& table, const void* data, std::size_t first,
                          std::size_t count, std::size_t salt) const;

  std::size_t element_bytes_;
  std::vector<Table> inputs_;  // by rank
  Table reduced_;              // empty where nothing is reduced
};

}  // namespace isthmus
