#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tools/launch/launch.h"

namespace isthmus {

// Memory that the parent and its forked ranks share while they measure: the place of the result,
// and for each rank a few pieces that the others read. Owned by the parent, made before the fork.
class TuneArena {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{128} << 10;
  static constexpr int kPieces = 4;  // of each rank

  static Result<TuneArena> create(int ranks);

  // Piece `index` of a rank.
  std::byte* piece(int rank, int index) const;

  // By rank 0, at its end.
  Status put_result(std::string_view text) const;

  // By the parent, once the ranks have ended.
  std::string_view result() const;

 private:
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(std::byte* memory) const;
  };

  explicit TuneArena(std::unique_ptr<std::byte, Unmap> memory) : memory_(std::move(memory)) {}

  std::unique_ptr<std::byte, Unmap> memory_;
};

// What one forked rank does: joins the world of all, measures the costs and the algorithms with the
// others, and leaves a table of one part in the arena (rank 0). `progress` is called on rank 0 with
// the share that is done, 0 to 1, and what comes next.
Status tune_rank(const Member& member, const TuneArena& arena,
                 const std::function<void(double, std::string_view)>& progress);

// Forks so many ranks that run `body`, and returns what rank 0 left in the arena. What a rank fails
// with is said on stderr; then this fails with kInternal.
Result<std::string> measure_together(
    int ranks, const std::function<Status(const Member&, const TuneArena&)>& body);

}  // namespace isthmus
