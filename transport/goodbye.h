#pragma once

#include <fmt/format.h>

#include "base/result.h"
#include "transport/endpoint.h"

namespace isthmus {

// What a lane tells the engine when its peer has said goodbye, and what its posts fail with.
inline Notice goodbye_notice(int peer) {
  return {.kind = Notice::Kind::kGoodbye,
          .culprit = peer,
          .from = peer,
          .code = Code::kAborted,
          .text = {}};
}

inline Error goodbye_error(int peer) {
  return {.code = Code::kPeerDead,
          .culprit = peer,
          .message = fmt::format("World rank {} left the group: it shut down.", peer)};
}

}  // namespace isthmus
