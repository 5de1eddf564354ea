#pragma once

#include <string>
#include <string_view>

#include "base/log.h"

namespace isthmus::nccl {

// Where the plug-in's lines go: to NCCL's logger once init has given it, else to base/log.h.
// NCCL prints warnings for everybody and the rest with NCCL_DEBUG=INFO. Any thread.
using Reporter = void (*)(LogLevel level, const char* text);
void set_reporter(Reporter reporter);

void report(LogLevel level, std::string_view text);

}  // namespace isthmus::nccl
