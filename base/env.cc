#include "base/env.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/nearest.h"

namespace isthmus {
namespace {

constexpr std::string_view kPrefix = "ISTHMUS_";

std::optional<std::int64_t> parse_int(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<bool> parse_flag(std::string_view text) {
  if (text == "1" || text == "true" || text == "on" || text == "yes") {
    return true;
  }
  if (text == "0" || text == "false" || text == "off" || text == "no") {
    return false;
  }
  return std::nullopt;
}

void read_int(std::string_view name, std::string_view text, std::int64_t low, std::int64_t high,
              std::int64_t* value, std::vector<std::string>* warnings) {
  const std::optional<std::int64_t> got = parse_int(text);
  if (!got || *got < low || *got > high) {
    warnings->push_back(
        fmt::format("ISTHMUS_{} is '{}', expected an integer from {} to {}; using {}", name, text,
                    low, high, *value));
    return;
  }
  *value = *got;
}

void read_flag(std::string_view name, std::string_view text, bool* value,
               std::vector<std::string>* warnings) {
  const std::optional<bool> got = parse_flag(text);
  if (!got) {
    warnings->push_back(
        fmt::format("ISTHMUS_{} is '{}', expected 0 or 1; using {}", name, text, *value ? 1 : 0));
    return;
  }
  *value = *got;
}

void warn_unknown(std::string_view name, std::vector<std::string>* warnings) {
  std::vector<std::string> known;
  for (const EnvRow& row : env_table()) {
    known.emplace_back(row.name);
  }
  const std::string full = std::string(kPrefix) + std::string(name);
  const std::string near = nearest(full, known);
  warnings->push_back(
      near.empty() ? fmt::format("unknown variable {} is ignored; docs/env.md lists all", full)
                   : fmt::format("unknown variable {} is ignored; did you mean {}?", full, near));
}

void read_one(Env* out, std::string_view name, std::string_view value,
              std::vector<std::string>* warnings) {
#define ENV_INT(field, fallback, low, high, text)            \
  if (name == #field) {                                      \
    read_int(name, value, low, high, &out->field, warnings); \
    return;                                                  \
  }
#define ENV_FLAG(field, fallback, text)            \
  if (name == #field) {                            \
    read_flag(name, value, &out->field, warnings); \
    return;                                        \
  }
#define ENV_TEXT(field, fallback, text) \
  if (name == #field) {                 \
    out->field = value;                 \
    return;                             \
  }
#include "base/env.def"
#undef ENV_INT
#undef ENV_FLAG
#undef ENV_TEXT
  warn_unknown(name, warnings);
}

}  // namespace

Env Env::parse(std::span<const char* const> environment, std::vector<std::string>* warnings) {
  Env out;
  for (const char* entry : environment) {
    const std::string_view line(entry);
    const std::size_t equals = line.find('=');
    if (!line.starts_with(kPrefix) || equals == std::string_view::npos) {
      continue;
    }
    read_one(&out, line.substr(kPrefix.size(), equals - kPrefix.size()), line.substr(equals + 1),
             warnings);
  }
  return out;
}

std::uint64_t Env::schedule_hash() const {
  std::uint64_t hash = hash_bytes(ALGO);
  hash = hash_combine(hash, static_cast<std::uint64_t>(STAGING_MB));
  hash = hash_combine(hash, SHM ? 1 : 0);
  hash = hash_combine(hash, DETERMINISTIC ? 1 : 0);
  return hash_combine(hash, static_cast<std::uint64_t>(HEAP_GB + 1));
}

const Env& env() {
  static const Env parsed = [] {
    std::vector<const char*> entries;
    for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
      entries.push_back(*entry);
    }
    std::vector<std::string> warnings;
    Env out = Env::parse(entries, &warnings);
    log_configure(out.LOG, out.LOG_FILE);
    for (const std::string& warning : warnings) {
      log_line(LogLevel::kWarn, "env", warning);
    }
    return out;
  }();
  return parsed;
}

std::string launcher_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::vector<EnvRow> env_table() {
  std::vector<EnvRow> rows;
#define ENV_INT(name, fallback, low, high, text)                            \
  rows.push_back({"ISTHMUS_" #name, "integer", fmt::format("{}", fallback), \
                  fmt::format("{} to {}", low, high), text});
#define ENV_FLAG(name, fallback, text) \
  rows.push_back({ "ISTHMUS_" #name, "flag", (fallback) ? "1" : "0", "0 or 1", text });
#define ENV_TEXT(name, fallback, text) \
  rows.push_back({ "ISTHMUS_" #name, "text", fallback, "", text });
#include "base/env.def"
#undef ENV_INT
#undef ENV_FLAG
#undef ENV_TEXT
  return rows;
}

std::vector<std::string> env_values(const Env& env) {
  std::vector<std::string> values;
#define ENV_INT(name, fallback, low, high, text) values.push_back(fmt::format("{}", env.name));
#define ENV_FLAG(name, fallback, text) values.push_back(env.name ? "1" : "0");
#define ENV_TEXT(name, fallback, text) values.push_back(env.name);
#include "base/env.def"
#undef ENV_INT
#undef ENV_FLAG
#undef ENV_TEXT
  return values;
}

}  // namespace isthmus
