#include "tools/isthmus/link_probe.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace isthmus {
namespace {

// Half the way there and back of one message between two ranks; the same on both.
Result<double> one_way_us(Communicator& group, int peer, bool first, std::vector<char>* data,
                          int rounds) {
  const Deadline deadline = Deadline::after_ms(group.timeout_ms());
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (const bool sends : {first, !first}) {
      ISTHMUS_ASSIGN(const WorkRef work,
                     sends ? group.start_send(data->data(), data->size(), peer, 0)
                           : group.start_recv(data->data(), data->size(), peer, 0));
      ISTHMUS_TRY(work->wait(deadline));
    }
    const std::chrono::duration<double, std::micro> both = std::chrono::steady_clock::now() - start;
    times.push_back(both.count() / 2.0);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Between the first ranks of nodes `first` + i and `second` + i, of so many pairs at once: what the
// first pair gets.
Result<LinkClass> probe(Communicator& group, int first, int second, int pairs) {
  constexpr std::size_t kLarge = std::size_t{4} << 20;
  const Topology& topology = group.topology();
  LinkClass link;
  for (int pair = 0; pair < pairs; ++pair) {
    const int one = topology.members(first + pair).front();
    const int other = topology.members(second + pair).front();
    if (group.rank() == one || group.rank() == other) {
      const bool begins = group.rank() == one;
      const int peer = begins ? other : one;
      std::vector<char> small(8);
      std::vector<char> large(kLarge);
      ISTHMUS_ASSIGN(link.alpha_us, one_way_us(group, peer, begins, &small, 201));
      ISTHMUS_ASSIGN(const double us, one_way_us(group, peer, begins, &large, 9));
      link.beta_us_per_mib =
          std::max(us - link.alpha_us, 0.0) / (static_cast<double>(kLarge) / (1 << 20));
    }
  }
  ISTHMUS_TRY(group.broadcast(&link, sizeof(link), DType::kByte, topology.members(first).front()));
  return link;
}

}  // namespace

Result<LinkClass> probe_between(Communicator& group) {
  const Topology& topology = group.topology();
  int first = 0;
  while (first + 2 < topology.nodes() &&
         topology.rack_of_node(first) != topology.rack_of_node(first + 1)) {
    ++first;
  }
  return probe(group, first, first + 1, 1);
}

Result<LinkClass> probe_across(Communicator& group) {
  const Topology& topology = group.topology();
  const int pairs = std::min(topology.nodes_of_rack(0), topology.nodes_of_rack(1));
  ISTHMUS_ASSIGN(LinkClass link, probe(group, 0, topology.rack_begin(1), pairs));
  link.beta_us_per_mib /= pairs;
  return link;
}

}  // namespace isthmus
