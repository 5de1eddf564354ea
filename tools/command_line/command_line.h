#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own name
class App;
}

namespace isthmus {

// What the programs of this tree share about their command lines: exit codes, sizes, and answers to
// mistyped flags. For programs only, on their main thread.

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;  // nothing was done

// Parses a command line and says what there is to say: help and version on stdout, errors on stderr
// with the nearest valid flag or subcommand. The exit code, or nothing when the program is to go
// on. `quiet` says nothing of errors: for all ranks but one.
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv,
                                      bool quiet = false);

// "8", "32K", "64M", "1.5G", also "64MiB" and "64MB": bytes, in powers of 1024 as in nccl-tests.
Result<std::uint64_t> parse_bytes(std::string_view text);

// The shortest exact form: "8 B", "32 KiB", "1025 B".
std::string bytes_text(std::uint64_t bytes);

}  // namespace isthmus
