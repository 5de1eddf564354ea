#include "base/temp_folder.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace isthmus {

TempFolder::TempFolder(std::string path) : path_(std::move(path)), owner_(::getpid()) {}

Result<TempFolder> TempFolder::create(std::string_view what) {
  std::error_code failure;
  const std::filesystem::path where = std::filesystem::temp_directory_path(failure);
  if (failure) {
    return system_error(Code::kIo, failure.value(), "cannot find the folder for temporary files");
  }
  std::string name = (where / fmt::format("isthmus-{}-XXXXXX", what)).string();
  if (::mkdtemp(name.data()) == nullptr) {
    return system_error(Code::kIo, errno, fmt::format("cannot make the folder {}", name));
  }
  return TempFolder(std::move(name));
}

TempFolder::TempFolder(TempFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), owner_(other.owner_) {}

TempFolder& TempFolder::operator=(TempFolder&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::exchange(other.path_, {});
    owner_ = other.owner_;
  }
  return *this;
}

void TempFolder::remove() {
  if (!path_.empty() && owner_ == ::getpid()) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  path_.clear();
}

}  // namespace isthmus
