#include <bit>
#include <cstdint>

#include "collectives/algorithms/mapped_pieces.h"
#include "collectives/algorithms/two_level_cross.h"

namespace isthmus {

namespace {

// exchange_ and halving_reduce_shards, step by step: lanes_all_reduce whose results stay with their
// lanes. Local rank l reduces piece by piece shard l within its node, and `Cross` (see Lanes)
// combines it with the counterparts' of the other nodes while the next piece is reduced. Staging
// holds `slots` pieces of every shard but the own one, which is read where it lies.
template <typename Cross>
class Shards {
 public:
  Shards(const Request& request, std::string_view name)
      : cross_(request),
        tuning_(request.tuning),
        b_(start_schedule(request, OpKind::kReduceShards, name, partition(request, cross_), true)) {
  }

  Result<Schedule> build() {
    stage_ahead(
        tuning_, [this](std::uint32_t piece) { stage(piece); },
        [this](std::uint32_t piece) { reduce(piece); });
    return b_.build();
  }

 private:
  // Marks of a shard: the parts of its pieces.
  static Partition partition(const Request& request, const Cross& cross) {
    Partition marks = shards_partition(request);
    marks.pieces_log2 += static_cast<std::uint32_t>(std::bit_width(cross.parts())) - 1;
    return marks;
  }

  std::uint32_t mark(std::uint32_t shard, std::uint32_t piece) const {
    return (shard * tuning_.pieces + piece) * cross_.parts();
  }

  Place operand(std::uint32_t piece, std::uint32_t shard) const {
    return b_.stage((tuning_.slot(piece) * b_.locals() + shard) * cross_.parts());
  }

  void stage(std::uint32_t piece) {
    await_slot(b_, tuning_, piece);
    for (std::uint32_t step = 1; step < b_.locals(); ++step) {
      const std::uint32_t shard = (b_.local() + step) % b_.locals();
      const std::uint32_t first = mark(shard, piece);
      b_.copy(operand(piece, shard), Builder::input(first), first, first + cross_.parts());
    }
    publish_staged(b_, piece);
  }

  void reduce(std::uint32_t piece) {
    await_staged(b_, piece);
    const std::uint32_t first = mark(b_.local(), piece);
    const std::uint32_t base = tuning_.slot(piece) * cross_.units();
    cross_.run(b_, operand(piece, b_.local()), first, base);
    publish_read(b_, tuning_, piece);
    b_.copy(Builder::output(piece * cross_.parts()), Builder::scratch(base + cross_.result()),
            first, first + cross_.parts());
  }

  const Cross cross_;
  const Tuning tuning_;
  Builder b_;
};

}  // namespace

Result<Schedule> exchange_reduce_shards(const Request& request) {
  return Shards<WholeSlices>(request, "exchange_reduce_shards").build();
}

Result<Schedule> halving_reduce_shards(const Request& request) {
  return Shards<HalvedSlices>(request, "halving_reduce_shards").build();
}

}  // namespace isthmus
