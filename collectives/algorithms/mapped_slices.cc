#include "collectives/algorithms/mapped.h"
#include "collectives/algorithms/mapped_pieces.h"

namespace isthmus {

namespace {

// A chunk has one slice per rank; staging unit s of its buffer holds this rank's input of slice s,
// and, in this rank's own place, the reduced slice. Everyone reads all results, or the root does,
// which then reduces its own slice into its output.
class Slices {
 public:
  Slices(const Request& request, OpKind op, std::string_view name)
      : tuning_(request.tuning),
        b_(start_mapped(request, op, name, partition(request))),
        rooted_(op_traits(op).rooted),
        root_(request.root) {}

  Result<Schedule> build() {
    // With three buffers results are read one chunk late: their owners had time to reduce.
    const std::uint32_t chunks = tuning_.pieces;
    const std::uint32_t delay = tuning_.slots >= 3 ? 1 : 0;
    stage(0);
    for (std::uint32_t chunk = 0; chunk < chunks + delay; ++chunk) {
      if (chunk + 1 < chunks) {
        stage(chunk + 1);
      }
      if (chunk < chunks) {
        reduce(chunk);
      }
      if (chunk >= delay && (!rooted_ || is_root())) {
        collect(chunk - delay);
      }
    }
    return b_.build();
  }

 private:
  static Partition partition(const Request& request) {
    const int locals = request.topology.locals_of(static_cast<int>(request.rank));
    return {false, request.tuning.pieces * static_cast<std::uint32_t>(locals), 0};
  }

  bool is_root() const { return rooted_ && b_.local() == root_; }

  std::uint32_t mark(std::uint32_t chunk) const { return chunk * b_.locals(); }

  std::uint32_t unit(std::uint32_t chunk) const { return tuning_.slot(chunk) * b_.locals(); }

  void copy_slices(std::uint32_t chunk, std::uint32_t first, std::uint32_t last) {
    if (first != last) {
      b_.copy(b_.stage(unit(chunk) + first), Builder::input(mark(chunk) + first),
              mark(chunk) + first, mark(chunk) + last);
    }
  }

  void stage(std::uint32_t chunk) {
    if (chunk >= tuning_.slots) {
      const std::uint32_t read = chunk - tuning_.slots + 1;
      if (rooted_) {
        b_.await(kResultsRead, read, root_, 1);
      } else {
        b_.await_all(kResultsRead, read);
      }
    }
    copy_slices(chunk, 0, b_.local());
    copy_slices(chunk, b_.local() + 1, b_.locals());
    publish_staged(b_, chunk);
  }

  void reduce(std::uint32_t chunk) {
    await_staged(b_, chunk);
    const std::uint32_t own = mark(chunk) + b_.local();
    const Place result = b_.stage(unit(chunk) + b_.local());
    if (is_root()) {
      b_.reduce_locals(Builder::output(own), result, own, own + 1, true, true);
      return;
    }
    b_.reduce_locals(result, result, own, own + 1, true, true);
    b_.publish(kReduced, chunk + 1);
    if (!rooted_) {
      b_.copy(Builder::output(own), result, own, own + 1);
    }
  }

  void collect(std::uint32_t chunk) {
    b_.await_all(kReduced, chunk + 1);
    for (std::uint32_t step = 1; step < b_.locals(); ++step) {
      // Each rank starts with another owner, so that not all read the same one at once.
      const std::uint32_t owner = (b_.local() + step) % b_.locals();
      const std::uint32_t slice = mark(chunk) + owner;
      b_.copy(Builder::output(slice), Builder::of_local(b_.stage(unit(chunk) + owner), owner),
              slice, slice + 1);
    }
    if (chunk + tuning_.slots < tuning_.pieces) {
      b_.publish(kResultsRead, chunk + 1);
    }
  }

  const Tuning tuning_;
  Builder b_;
  const bool rooted_;
  const std::uint32_t root_;
};

}  // namespace

Result<Schedule> slice_all_reduce(const Request& request) {
  return Slices(request, OpKind::kAllReduce, "slice_all_reduce").build();
}

Result<Schedule> slice_reduce(const Request& request) {
  return Slices(request, OpKind::kReduce, "slice_reduce").build();
}

}  // namespace isthmus
