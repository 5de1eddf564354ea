#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "transport/rendezvous.h"

namespace isthmus {

// A rendezvous in a directory that all ranks see, also over NFS: one file per value, written aside
// and renamed; one file per step of a counter, taken with link(2), which is atomic on NFS too.
// No locks, so that no rank's death holds up another. Waits look again every 1 to 50 ms.
// Nothing is ever removed but this object's own temporary files: remove the directory after the
// job, and use a new one (or keys with an incarnation) for each run. A key is either a value (set)
// or a counter (add); get() gives a counter's sum in decimal. Thread rule: one caller at a time.
class FileStore final : public Rendezvous {
  struct Private {};  // only create() makes one

 public:
  static constexpr std::size_t kKeyBytesMax = 4096;
  static constexpr std::size_t kValueBytesMax = std::size_t{64} << 20;

  // Makes the directory, readable by this user only, where it is missing; its parent must exist.
  static Result<std::unique_ptr<FileStore>> create(std::string directory);

  FileStore(Private, std::string directory) : directory_(std::move(directory)) {}

  Status set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override;

 private:
  std::string path_of(const std::string& name) const { return directory_ + "/" + name; }

  Result<std::string> write_aside(std::string_view key, std::string_view value);
  Result<bool> read(const std::string& name, std::string_view key, std::string* value) const;
  Result<bool> exists(const std::string& name) const;
  Result<std::uint64_t> newest_step(const std::string& stem, std::uint64_t from) const;

  std::string directory_;
  std::uint64_t written_ = 0;                   // numbers this object's temporary files
  std::map<std::string, std::uint64_t> steps_;  // newest step seen of each counter
};

}  // namespace isthmus
