#pragma once

#include <cstddef>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace isthmus::net_plugin {

// Bytes between the two processes of a measurement, beside the plug-in's own: a socket of the
// machine, which also joins two network namespaces. Every call ends within kLimitMs. One thread.
class Channel {
 public:
  static constexpr int kLimitMs = 120'000;

  explicit Channel(Fd socket) : socket_(std::move(socket)) {}

  // A socket file at `path`: rank 0 makes it, rank 1 calls it.
  static Result<Channel> meet_at(const std::string& path, int rank);

  Status write(const void* data, std::size_t bytes);
  Status read(void* data, std::size_t bytes);

  // Returns when the other process is there, too.
  Status meet();

  // The other's value for mine.
  template <typename T>
  Result<T> swap(const T& mine) {
    T theirs{};
    Status status = write(&mine, sizeof(mine));
    if (status.ok()) {
      status = read(&theirs, sizeof(theirs));
    }
    if (!status.ok()) {
      return status.error();
    }
    return theirs;
  }

 private:
  Fd socket_;
};

}  // namespace isthmus::net_plugin
