#include "collectives/algorithms/message.h"

namespace isthmus {

namespace {

Builder start(const Request& request, std::string_view name) {
  return start_schedule(request, OpKind::kAllToAll, name, ranked_partition(request), false);
}

void copy_own(Builder& b) {
  b.copy(Builder::output(b.rank()), Builder::input(b.rank()), b.rank(), b.rank() + 1);
}

// Every rank sends to another one in each step, so that no link takes two blocks at once.
template <typename PlaceOf>
void exchange(Builder& b, const PlaceOf& place_of) {
  for (std::uint32_t step = 1; step < b.ranks(); ++step) {
    const std::uint32_t to = (b.rank() + step) % b.ranks();
    const std::uint32_t from = (b.rank() + b.ranks() - step) % b.ranks();
    b.send(to, Builder::input(to), to, to + 1);
    b.recv(from, place_of(from), from, from + 1);
  }
}

}  // namespace

Result<Schedule> direct_all_to_all(const Request& request) {
  Builder b = start(request, "direct_all_to_all");
  exchange(b, Builder::scratch);
  b.gate_output();
  for (std::uint32_t rank = 0; rank < b.ranks(); ++rank) {
    if (rank != b.rank()) {
      b.copy(Builder::output(rank), Builder::scratch(rank), rank, rank + 1);
    }
  }
  copy_own(b);
  return b.build();
}

Result<Schedule> pairwise_all_to_all(const Request& request) {
  Builder b = start(request, "pairwise_all_to_all");
  disseminate(b);
  b.gate_output();
  copy_own(b);
  exchange(b, Builder::output);
  return b.build();
}

}  // namespace isthmus
