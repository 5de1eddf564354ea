#include "transport/blame.h"

#include <set>

namespace isthmus {

std::vector<int> blamed(int self, const std::vector<int>& waited_for,
                        const std::function<std::vector<int>(int world_rank)>& waits_of) {
  std::vector<int> found;
  std::set<int> met = {self};
  std::vector<int> queue;
  const auto add = [&](const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (met.insert(rank).second) {
        queue.push_back(rank);
      }
    }
  };
  add(waited_for);
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const std::vector<int> waits = waits_of(queue[i]);
    if (waits.empty()) {
      found.push_back(queue[i]);
    }
    add(waits);
  }
  return found.empty() ? waited_for : found;
}

}  // namespace isthmus
