#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace isthmus {

// Every ISTHMUS_* variable, read once. Immutable after parsing; safe from any thread.
struct Env {
#define ENV_INT(name, fallback, low, high, text) std::int64_t name = fallback;
#define ENV_FLAG(name, fallback, text) bool name = fallback;
#define ENV_TEXT(name, fallback, text) std::string name = fallback;
#include "base/env.def"
#undef ENV_INT
#undef ENV_FLAG
#undef ENV_TEXT

  // Reads "NAME=value" strings. An out-of-range or malformed value and an unknown ISTHMUS_* name
  // keep the default and add one sentence to `warnings`, with a suggestion for a near name.
  static Env parse(std::span<const char* const> environment, std::vector<std::string>* warnings);

  // Hash over the variables that can change which schedule runs: ranks must agree on it.
  std::uint64_t schedule_hash() const;
};

// The process's environment, parsed on first use; warnings are logged then.
const Env& env();

// Launcher variables (RANK, OMPI_COMM_WORLD_RANK, ...): not ours, so not in env.def. Empty if
// unset.
std::string launcher_variable(const char* name);

// One row of env.def, for `isthmus info --env` and the generated docs.
struct EnvRow {
  std::string_view name;  // with the ISTHMUS_ prefix
  std::string_view type;  // "integer", "flag" or "text"
  std::string fallback;
  std::string range;  // "" when none
  std::string_view text;
};

std::vector<EnvRow> env_table();

// Value in force of each row of env_table(), in the same order.
std::vector<std::string> env_values(const Env& env);

}  // namespace isthmus
