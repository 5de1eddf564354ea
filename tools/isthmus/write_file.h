#pragma once

#include <string>

#include "base/result.h"

namespace isthmus {

// Writes a file whole or not at all, since a job may start meanwhile; makes its folder. Fails with
// kIo.
Status write_file(const std::string& path, const std::string& text);

}  // namespace isthmus
