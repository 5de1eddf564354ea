#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace isthmus {

// A new folder that only this user can enter, in TMPDIR or /tmp; removed with all that is in it by
// the process that made it: a forked child leaves it alone. Owns the folder. One thread.
class TempFolder {
 public:
  // "isthmus-<what>-" and six random characters.
  static Result<TempFolder> create(std::string_view what);

  TempFolder(TempFolder&& other) noexcept;
  TempFolder& operator=(TempFolder&& other) noexcept;
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  ~TempFolder() { remove(); }

  // Empty once it is removed.
  const std::string& path() const { return path_; }

  // Before the end. What cannot be removed stays.
  void remove();

 private:
  explicit TempFolder(std::string path);

  std::string path_;
  int owner_ = 0;  // the process that made it
};

}  // namespace isthmus
