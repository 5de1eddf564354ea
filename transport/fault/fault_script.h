#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/result.h"

namespace isthmus {

// One thing that goes wrong, and when. An occasion is a post (or, of kDropNotice, a notice) that
// fits `peer` and `side`. The first `skip` occasions pass, the next `times` are hit, each with
// probability per_mille / 1000; then the rule is used up.
struct FaultRule {
  enum class Kind : std::uint8_t {
    kBusy,            // the post answers kBusy
    kDelay,           // its completion comes `amount` polls late, also where it would be kDone
    kReorder,         // as kDelay, by a random number of polls from 0 to `amount`
    kFailPost,        // the post answers `error`
    kFailCompletion,  // it completes as failed with the code of `error`, though the data may move
    kLoseCompletion,  // nobody hears of its end again, until cancel()
    kTruncate,        // it is posted `amount` bytes shorter than asked: the sides mismatch
    kDropNotice,      // the notice is lost: kSends those to a peer, kReceives those from it
    kKillPeer,        // the peer is seen to die at this post, which is the first to fail
  };

  enum class Side : std::uint8_t { kBoth, kSends, kReceives };

  static constexpr int kAnyPeer = -1;
  static constexpr std::uint32_t kAlways = std::numeric_limits<std::uint32_t>::max();

  Kind kind = Kind::kBusy;
  int peer = kAnyPeer;
  Side side = Side::kBoth;
  std::uint32_t skip = 0;
  std::uint32_t times = kAlways;
  std::uint32_t per_mille = 1000;
  std::uint32_t amount = 0;
  Error error = {};
};

// What a FaultTransport does to the one it wraps: the same seed and calls, the same faults.
struct FaultScript {
  std::uint64_t seed = 1;
  std::vector<FaultRule> rules;  // each is asked at each occasion, in this order
};

}  // namespace isthmus
