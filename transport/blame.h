#pragma once

#include <functional>
#include <vector>

namespace isthmus {

// Of world ranks that wait for one another, those to blame: reached from `waited_for` through
// whom each waits for, and waiting for nobody. In the order they are met. All of `waited_for` when
// there is none, since everybody waits for somebody. `self` is where it comes from: it is waiting.
// `waits_of` is asked once a rank; an empty answer means that it does not wait.
std::vector<int> blamed(int self, const std::vector<int>& waited_for,
                        const std::function<std::vector<int>(int world_rank)>& waits_of);

}  // namespace isthmus
