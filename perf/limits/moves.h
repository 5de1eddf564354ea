#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "perf/limits/kernels.h"

namespace isthmus::limits {

// Collectives that only move data, where rank r's buffer `a` has a block for each rank:
// - all_gather: block o comes from rank o's block o, in place
// - all_to_all: block o of `b` comes from rank o's block r
// - broadcast: the one block comes from rank 0's
enum class MoveOp { kAllGather, kAllToAll, kBroadcast };

// The operation of that name; false for any other.
bool move_op(std::string_view name, MoveOp* op);

// A bare kernel for them, on private buffers. Made before Team::fork(), used by every rank in the
// same order.
class Mover {
 public:
  explicit Mover(Team* team) : team_(*team) {}

  virtual ~Mover() = default;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  virtual bool moves(MoveOp op) const = 0;
  virtual void move(MoveOp op, std::byte* a, std::byte* b, std::size_t block) = 0;

 protected:
  Team& team_;
};

// Names: pull (process_vm_readv), stage (a ring of slots). Null for any other.
std::unique_ptr<Mover> make_mover(std::string_view name, Team* team, const Tuning& tuning);

}  // namespace isthmus::limits
