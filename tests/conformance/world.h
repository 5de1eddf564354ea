#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "transport/endpoint.h"

namespace isthmus::conformance {

// The ranks of one test, all driven by the test's thread. Addresses are not exchanged yet.
class World {
 public:
  virtual ~World() = default;

  virtual Transport& rank(int rank) = 0;

  // Ends a rank as SIGKILL would: no goodbye; rank() is not called for it again. False where this
  // transport cannot be killed so.
  virtual bool kill(int rank) = 0;
};

// One implementation under test.
struct Factory {
  std::string name;
  std::function<std::unique_ptr<World>(int ranks, std::uint64_t seed)> make;
  // Sends up to this size may be over before their receive is posted: their sender does not hear of
  // a mismatch.
  std::size_t eager_bytes_max = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Factory& factory) {
  return out << factory.name;
}

}  // namespace isthmus::conformance
