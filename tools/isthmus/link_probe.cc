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

}  // namespace

Result<LinkClass> probe_between(Communicator& group) {
  constexpr std::size_t kLarge = std::size_t{4} << 20;
  const Topology& topology = group.topology();
  const int one = topology.members(0).front();
  const int other = topology.members(1).front();
  LinkClass link;
  if (group.rank() == one || group.rank() == other) {
    const bool first = group.rank() == one;
    std::vector<char> small(8);
    std::vector<char> large(kLarge);
    ISTHMUS_ASSIGN(link.alpha_us, one_way_us(group, first ? other : one, first, &small, 201));
    ISTHMUS_ASSIGN(const double us, one_way_us(group, first ? other : one, first, &large, 9));
    link.beta_us_per_mib =
        std::max(us - link.alpha_us, 0.0) / (static_cast<double>(kLarge) / (1 << 20));
  }
  ISTHMUS_TRY(group.broadcast(&link, sizeof(link), DType::kByte, one));
  return link;
}

}  // namespace isthmus
