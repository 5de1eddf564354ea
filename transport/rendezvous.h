#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace isthmus {

// Where ranks find each other: used only at start. Torch's store, a TCP store and a file store
// implement it. Values are opaque bytes.
// Thread rule: one caller at a time.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  virtual Status set(std::string_view key, std::string_view value) = 0;

  // Waits until the key exists. kTimeout names the key and, where the implementation knows, who has
  // not come.
  virtual Result<std::string> get(std::string_view key, Deadline deadline) = 0;

  // Adds to a counter (created as 0) and returns the sum.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t amount) = 0;
};

}  // namespace isthmus
