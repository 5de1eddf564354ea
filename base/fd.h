#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/result.h"

namespace isthmus {

// Owns one file descriptor; closes it once. Move-only. Every live Fd is listed, so that the child
// of a fork can close all of ours: see base/fork.h.
// Thread rule: one owner at a time.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd);

  ~Fd() { reset(); }

  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;

  int get() const { return fd_; }

  bool valid() const { return fd_ >= 0; }

  void reset();

  // Gives the descriptor away: the caller closes it.
  int release();

  Result<Fd> duplicate() const;

 private:
  int fd_ = -1;
};

}  // namespace isthmus
