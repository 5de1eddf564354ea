#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "transport/rendezvous.h"

namespace isthmus {

// A rendezvous within one process: for worlds of one rank, and for ranks that are threads and share
// this object. A key is either a value (set) or a counter (add); get() gives a counter's sum in
// decimal.
// Thread rule: any thread, any number at once.
class MemoryStore final : public Rendezvous {
 public:
  Status set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override;

 private:
  struct Entry {
    std::string value;
    std::int64_t sum = 0;
    bool counter = false;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace isthmus
