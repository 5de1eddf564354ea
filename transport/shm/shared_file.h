#pragma once

#include <cstddef>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace isthmus {

// A file of `bytes` zeros that lives as long as somebody holds it: a memfd, or, when `named` or
// where memfd is not allowed, an unnamed file in /dev/shm. Passed on by descriptor; nothing is left
// behind by any death. With `named` its pages are reserved, so that a small /dev/shm is an error
// with the numbers here and not a SIGBUS later. Any thread.
Result<Fd> make_shared_file(const std::string& name, std::size_t bytes, bool named);

// Gives back what lies behind `bytes`, or reserves what is missing.
Status resize_shared_file(const Fd& fd, std::size_t bytes);

}  // namespace isthmus
