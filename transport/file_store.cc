#include "transport/file_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/hash.h"

namespace isthmus {
namespace {

constexpr std::int64_t kPauseMinMs = 1;
constexpr std::int64_t kPauseMaxMs = 50;

// A counter step lost to others is tried again: each loss is another rank's progress.
constexpr int kAddTriesMax = 1'000'000;

// Leads every file: one that is not whole yet (as NFS may show it) is no file yet.
struct Header {
  std::array<char, 8> magic = {'i', 's', 't', 'h', 'f', 's', '0', '1'};
  std::uint64_t key_bytes = 0;
  std::uint64_t value_bytes = 0;
  std::uint64_t hash = 0;  // of key and value
};

std::uint64_t content_hash(std::string_view key, std::string_view value) {
  return hash_combine(hash_bytes(key), hash_bytes(value));
}

// A key as part of a file name: letters, digits and a few signs stay, long keys end in a hash. Two
// keys never share a name by accident; the file holds the whole key all the same.
std::string name_of(std::string_view key) {
  constexpr std::size_t kNameBytesMax = 180;
  std::string name;
  for (const char c : key) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_';
    name += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  if (name.size() > kNameBytesMax) {
    name.resize(kNameBytesMax);
    name += fmt::format("%h{:016x}", hash_bytes(key));
  }
  return name;
}

std::string value_name(std::string_view key) {
  return "v." + name_of(key);
}

std::string step_name(const std::string& stem, std::uint64_t step) {
  return fmt::format("c.{}.{}", stem, step);
}

// The thread has nothing else to do; returns early on a signal, which does no harm.
void pause_ms(std::int64_t ms) {
  ::poll(nullptr, 0, static_cast<int>(ms));
}

Status write_all(const Fd& fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return system_error(Code::kIo, written < 0 ? errno : EIO,
                          fmt::format("cannot write {} bytes to {}", bytes.size(), path));
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Error mixed(const std::string& directory, std::string_view key, bool counter) {
  return Error{
      .code = Code::kInvalidArgument,
      .message = fmt::format("key '{}' of the file store {} is a {}: {} refused", key, directory,
                             counter ? "counter" : "value", counter ? "set() is" : "add() is")};
}

}  // namespace

Result<std::unique_ptr<FileStore>> FileStore::create(std::string directory) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_error(Code::kIo, errno,
                        fmt::format("cannot make the file store's directory {}; its parent must "
                                    "exist and be writable",
                                    directory));
  }
  struct stat info = {};
  if (::stat(directory.c_str(), &info) != 0) {
    return system_error(Code::kIo, errno,
                        fmt::format("cannot look at the file store's directory {}", directory));
  }
  if (!S_ISDIR(info.st_mode)) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("the file store's path {} is a file, expected a directory "
                                        "or a name that is free; give another",
                                        directory)};
  }
  return std::make_unique<FileStore>(Private{}, std::move(directory));
}

// Writes a whole file under a name that nobody else uses.
Result<std::string> FileStore::write_aside(std::string_view key, std::string_view value) {
  if (key.size() > kKeyBytesMax || value.size() > kValueBytesMax) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("a key of {} bytes with a value of {} bytes does not fit a "
                                        "file store: at most {} and {}",
                                        key.size(), value.size(), kKeyBytesMax, kValueBytesMax)};
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string path =
      path_of(fmt::format("t.{:016x}.{}.{:x}.{}.{}", hash_bytes(host.data()), ::getpid(),
                          static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(this)),
                          monotonic_ns(), ++written_));
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return system_error(Code::kIo, errno, fmt::format("cannot create {}", path));
  }
  Header header;
  header.key_bytes = key.size();
  header.value_bytes = value.size();
  header.hash = content_hash(key, value);
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  bytes += key;
  bytes += value;
  Status status = write_all(fd, bytes, path);
  // NFS tells of a failed write when the file is closed.
  if (::close(fd.release()) != 0 && status.ok()) {
    status = system_error(Code::kIo, errno, fmt::format("cannot write {}", path));
  }
  if (!status.ok()) {
    ::unlink(path.c_str());
    return status.error();
  }
  return path;
}

// False when there is no such file, or none that is whole yet.
Result<bool> FileStore::read(const std::string& name, std::string_view key,
                             std::string* value) const {
  // Opening the directory makes an NFS client ask the server what it holds.
  const Fd directory(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) {
    return system_error(Code::kIo, errno, fmt::format("cannot open the file store {}", directory_));
  }
  const Fd fd(::openat(directory.get(), name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno == ENOENT || errno == ESTALE) {
      return false;
    }
    return system_error(Code::kIo, errno, fmt::format("cannot open {}", path_of(name)));
  }
  std::string bytes;
  std::array<char, 16384> piece{};
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && errno == ESTALE) {
      return false;
    }
    if (got < 0) {
      return system_error(Code::kIo, errno, fmt::format("cannot read {}", path_of(name)));
    }
    if (got == 0) {
      break;
    }
    bytes.append(piece.data(), static_cast<std::size_t>(got));
    if (bytes.size() > sizeof(Header) + kKeyBytesMax + kValueBytesMax) {
      return Error{.code = Code::kProtocol,
                   .message = fmt::format("{} is too long for a file store", path_of(name))};
    }
  }
  Header header;
  if (bytes.size() < sizeof header) {
    return false;
  }
  const Header expected;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::string_view rest = std::string_view(bytes).substr(sizeof header);
  if (header.magic != expected.magic || header.key_bytes > rest.size() ||
      header.value_bytes != rest.size() - header.key_bytes ||
      header.hash !=
          content_hash(rest.substr(0, header.key_bytes), rest.substr(header.key_bytes))) {
    return false;
  }
  if (rest.substr(0, header.key_bytes) != key) {
    return Error{.code = Code::kInternal,
                 .message = fmt::format("keys '{}' and '{}' share the file {}; rename one", key,
                                        rest.substr(0, header.key_bytes), path_of(name))};
  }
  *value = rest.substr(header.key_bytes);
  return true;
}

Result<bool> FileStore::exists(const std::string& name) const {
  const Fd directory(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info = {};
  if (directory.valid() && ::fstatat(directory.get(), name.c_str(), &info, 0) == 0) {
    return true;
  }
  if (directory.valid() && (errno == ENOENT || errno == ESTALE)) {
    return false;
  }
  return system_error(Code::kIo, errno, fmt::format("cannot look for {}", path_of(name)));
}

Status FileStore::set(std::string_view key, std::string_view value) {
  ISTHMUS_ASSIGN(const bool counter, exists(step_name(name_of(key), 1)));
  if (counter) {
    return mixed(directory_, key, true);
  }
  ISTHMUS_ASSIGN(const std::string aside, write_aside(key, value));
  const std::string path = path_of(value_name(key));
  if (::rename(aside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(aside.c_str());
    return system_error(Code::kIo, error, fmt::format("cannot rename {} to {}", aside, path));
  }
  return {};
}

Result<std::string> FileStore::get(std::string_view key, Deadline deadline) {
  const std::int64_t begin_ns = monotonic_ns();
  const std::string stem = name_of(key);
  std::int64_t pause = kPauseMinMs;
  for (;;) {
    std::string value;
    ISTHMUS_ASSIGN(const bool found, read(value_name(key), key, &value));
    if (found) {
      return value;
    }
    ISTHMUS_ASSIGN(const std::uint64_t step, newest_step(stem, steps_[stem]));
    if (step > 0) {
      ISTHMUS_ASSIGN(const bool whole, read(step_name(stem, step), key, &value));
      if (whole) {
        return value;
      }
    }
    const std::int64_t now_ns = monotonic_ns();
    if (deadline.passed(now_ns)) {
      return Error{.code = Code::kTimeout,
                   .message = fmt::format("nobody set key '{}' in the file store {} within {} ms; "
                                          "do all ranks use this directory?",
                                          key, directory_, (now_ns - begin_ns) / 1'000'000)};
    }
    pause_ms(std::min(pause, deadline.left_ms(now_ns) + 1));
    pause = std::min(2 * pause, kPauseMaxMs);
  }
}

// Steps are numbered without gaps from 1: doubles the stride while there are any, then halves it.
Result<std::uint64_t> FileStore::newest_step(const std::string& stem, std::uint64_t from) const {
  std::uint64_t known = from;
  std::uint64_t stride = 1;
  for (;;) {
    ISTHMUS_ASSIGN(const bool there, exists(step_name(stem, known + stride)));
    if (there) {
      known += stride;
      stride *= 2;
    } else if (stride == 1) {
      return known;
    } else {
      stride = 1 + (stride - 1) / 4;
    }
  }
}

Result<std::int64_t> FileStore::add(std::string_view key, std::int64_t amount) {
  ISTHMUS_ASSIGN(const bool value, exists(value_name(key)));
  if (value) {
    return mixed(directory_, key, false);
  }
  const std::string stem = name_of(key);
  for (int tries = 0; tries < kAddTriesMax; ++tries) {
    ISTHMUS_ASSIGN(const std::uint64_t step, newest_step(stem, steps_[stem]));
    steps_[stem] = step;
    std::int64_t sum = 0;
    if (step > 0) {
      std::string text;
      ISTHMUS_ASSIGN(const bool whole, read(step_name(stem, step), key, &text));
      if (!whole) {
        pause_ms(kPauseMinMs);
        continue;
      }
      std::from_chars(text.data(), text.data() + text.size(), sum);
    }
    sum += amount;
    ISTHMUS_ASSIGN(const std::string aside, write_aside(key, fmt::format("{}", sum)));
    const std::string path = path_of(step_name(stem, step + 1));
    const bool linked = ::link(aside.c_str(), path.c_str()) == 0;
    const int error = errno;
    // An answer lost on the way looks like failure: the file's own count of links knows better.
    struct stat info = {};
    const bool took_effect = ::stat(aside.c_str(), &info) == 0 && info.st_nlink == 2;
    ::unlink(aside.c_str());
    if (linked || took_effect) {
      steps_[stem] = step + 1;
      return sum;
    }
    if (error != EEXIST) {
      return system_error(Code::kIo, error,
                          fmt::format("cannot link {} to {}; a file store needs a file system with "
                                      "hard links",
                                      aside, path));
    }
  }
  return Error{
      .code = Code::kTimeout,
      .message = fmt::format("lost the race for counter '{}' in the file store {} {} times", key,
                             directory_, kAddTriesMax)};
}

}  // namespace isthmus
