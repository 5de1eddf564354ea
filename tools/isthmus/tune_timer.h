#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "collectives/world.h"
#include "tools/launch/launch.h"

namespace isthmus {

// The world of the processes that measure, by built-in costs: what they time they name.
Result<std::unique_ptr<World>> join_to_measure(const Member& member);

// 0 of none.
double median(std::vector<double> values);

// Times collectives as programs meet them: in place where those mostly are, from 4 KiB on each call
// by itself on data that its rank has just written. Data that an earlier call left in another
// rank's cache would flatter whoever reads there. Every rank calls the same in the same order.
class TuneTimer {
 public:
  // The input and the output of a call, of one kind of memory.
  struct Buffers {
    std::byte* input = nullptr;
    std::byte* output = nullptr;
  };

  // `sharing`: ranks on a processor. All three outlive the timer.
  TuneTimer(World& world, const Member& member, double sharing);

  // Makes the buffers; before anything else.
  Status prepare();

  std::size_t buffer_bytes() const { return buffer_bytes_; }

  Buffers own() const { return {input_.get(), output_.get()}; }

  // In memory that all ranks map; null where there is none.
  Buffers mapped() const;

  Call call_of(OpKind op, std::size_t bytes, const Buffers& buffers) const;

  // Whether the group runs this call by that algorithm when it is forced: buffers that all ranks
  // map are not used in place by small calls.
  bool runs_by(std::string_view algorithm, const Call& call);

  // Median over a few batches of what a call takes on the slowest rank, by that algorithm (empty:
  // by the group's own choice).
  Result<double> time_us(std::string_view algorithm, const Call& call);

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  using Memory = std::unique_ptr<std::byte, Free>;

  Memory allocate() const;
  Result<int> agree(int value);
  Result<double> batch_us(const Call& call, int calls);

  World& world_;
  Communicator& group_;
  const Member& member_;
  const bool shared_;
  const std::size_t buffer_bytes_;
  Memory input_;
  Memory output_;
  MemoryRegion mapped_input_;
  MemoryRegion mapped_output_;
  bool mapped_ = false;
};

}  // namespace isthmus
