#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "base/result.h"
#include "collectives/communicator.h"
#include "perf/common/options.h"
#include "perf/common/pattern.h"
#include "perf/common/report.h"

namespace isthmus {

// Measures one operation of a group, row by row. Collective: every rank calls the same in the same
// order. Owns two buffers of the largest size. One thread.
class Measure {
 public:
  // `alive` is called at least once per row and run, for a watchdog.
  static Result<std::unique_ptr<Measure>> create(Communicator& group, const PerfOptions& options,
                                                 std::function<void()> alive);

  // Use create().
  Measure(Communicator& group, const PerfOptions& options, std::function<void()> alive)
      : group_(group), options_(options), alive_(std::move(alive)) {}

  // Time and correctness of one size; of the wanted bytes as many as are whole elements of every
  // rank, but at least one. The row is complete on rank 0 only.
  Result<PerfRow> row(std::uint64_t bytes, DType dtype, RedOp red_op, bool in_place);

  // Bytes that a row of this size and dtype really has.
  std::size_t rounded(std::uint64_t bytes, DType dtype) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  using Memory = std::unique_ptr<std::byte, Free>;

  // Mean, fastest and slowest batch of one rank, in microseconds an iteration.
  struct Times {
    double mean = 0.0;
    double least = 0.0;
    double most = 0.0;
  };

  // A call, and where its buffers are.
  struct Asked {
    Call call;
    std::byte* input = nullptr;
    std::byte* output = nullptr;
  };

  Asked ask(std::size_t count, DType dtype, RedOp red_op, bool in_place) const;
  void prepare(const Asked& asked, const Pattern& pattern, std::size_t salt) const;
  std::size_t count_wrong(const Asked& asked, const Pattern& pattern, std::size_t salt) const;
  Result<std::int64_t> check(const Asked& asked, const Pattern& pattern);
  int before() const;
  Status once(const Call& call);
  Result<int> iterations_for(const Call& call);
  Result<Times> time(const Call& call, int iterations);
  Status combine(const Times& mine, PerfRow* row);

  std::size_t rank() const { return static_cast<std::size_t>(group_.rank()); }

  bool takes_part(Party party, const Call& call) const {
    return isthmus::takes_part(party, call, static_cast<std::uint32_t>(group_.rank()));
  }

  std::size_t ranks() const { return static_cast<std::size_t>(group_.size()); }

  Communicator& group_;
  PerfOptions options_;
  std::function<void()> alive_;
  Memory input_;
  Memory output_;
};

}  // namespace isthmus
