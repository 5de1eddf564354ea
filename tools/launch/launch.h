#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace isthmus {

// One of the processes that launch() forked.
struct Member {
  int rank = 0;
  int size = 1;
  std::string store;             // directory for a FileStore; gone once all ranks have joined
  std::function<void()> joined;  // to be called once when the rendezvous is over
  std::function<void()> alive;   // to be called whenever something was done
};

// Forks `ranks` processes of this one and runs `body` in each; its result is the exit code.
// Children die with their parent. When one fails, the others get a few seconds to say what they
// saw; when none does anything for stall_s seconds, all are ended. Says on stderr which rank failed
// and how. Call it before the library was used: a forked child of a user must not use it. Main
// thread only. The exit code for the whole: 0, or 1 when any rank failed.
int launch(int ranks, int stall_s, const std::function<int(const Member&)>& body);

// Binds the calling thread to one of the processors it may use: number `index` of them, round
// robin. False when it could not.
bool pin_round_robin(int index);

}  // namespace isthmus
