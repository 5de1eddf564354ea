#include "tools/isthmus/write_file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

namespace isthmus {

Status write_file(const std::string& path, const std::string& text) {
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, failure);
    if (failure) {
      return system_error(Code::kIo, failure.value(),
                          fmt::format("cannot make the folder {}", folder.string()));
    }
  }
  const std::string aside = fmt::format("{}.{}", path, ::getpid());
  std::FILE* file = std::fopen(aside.c_str(), "w");
  if (file == nullptr) {
    return system_error(Code::kIo, errno, fmt::format("cannot write {}", aside));
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || std::rename(aside.c_str(), path.c_str()) != 0) {
    const Status failed = system_error(Code::kIo, errno, fmt::format("cannot write {}", path));
    std::remove(aside.c_str());
    return failed;
  }
  return {};
}

}  // namespace isthmus
