#include "tools/command_line/command_line.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/nearest.h"

namespace isthmus {
namespace {

constexpr std::array<std::string_view, 5> kUnits = {"", "K", "M", "G", "T"};

void complain(const CLI::App& app, const std::string& text) {
  fmt::print(stderr, "{}: {}\n", app.get_name(), text);
}

// The subcommand that the words named, as deep as they go.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
  }
  return *at;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back("--" + name);
    }
    for (const std::string& name : option->get_snames()) {
      flags.push_back("-" + name);
    }
  }
  return flags;
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

// The word that no flag, subcommand or argument takes, with the nearest one that exists.
std::string unknown_word(const CLI::App& app, const std::string& word) {
  const bool flag = word.starts_with('-');
  const std::vector<std::string> known = flag ? flags_of(app) : subcommands_of(app);
  const std::string plain = word.substr(0, word.find('='));
  std::string near = nearest(plain, known);
  if (near.empty() && flag && plain.size() > 2 && plain[1] != '-') {
    near = nearest("-" + plain, known);
  }
  const char* what = flag ? "flag" : known.empty() ? "argument" : "command";
  if (!near.empty()) {
    return fmt::format("unknown {} '{}'; did you mean '{}'?", what, word, near);
  }
  return fmt::format("unknown {} '{}'; expected one of {} (--help explains them)", what, word,
                     known.empty() ? "the flags only" : fmt::format("{}", fmt::join(known, ", ")));
}

}  // namespace

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv,
                                      bool quiet) {
  std::optional<std::string> problem;
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // Help or version, on stdout.
  } catch (const CLI::ParseError& error) {
    problem = error.what();
  }
  // Unknown words first: a required argument is often missing because it was mistyped.
  const std::vector<std::string> unknown = app.remaining(true);
  if (!unknown.empty()) {
    problem = unknown_word(innermost(app), unknown.front());
  }
  if (!problem) {
    return std::nullopt;
  }
  if (!quiet) {
    complain(app, *problem);
  }
  return kExitUsage;
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  const Error bad{.code = Code::kInvalidArgument,
                  .message = fmt::format("'{}' is no size; expected a number of bytes such as 8, "
                                         "32K, 64M or 1G",
                                         text)};
  double number = 0.0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || !(number >= 0.0)) {
    return bad;
  }
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    unit += *c >= 'a' && *c <= 'z' ? static_cast<char>(*c - 'a' + 'A') : *c;
  }
  for (const std::string_view ending : {"IB", "B"}) {
    if (std::string_view(unit).ends_with(ending)) {
      unit.resize(unit.size() - ending.size());
      break;
    }
  }
  double scale = 1.0;
  for (const std::string_view known : kUnits) {
    if (unit == known) {
      const double bytes = number * scale;
      if (bytes > 0x1p62 || bytes != std::floor(bytes)) {
        return bad;
      }
      return static_cast<std::uint64_t>(bytes);
    }
    scale *= 1024.0;
  }
  return bad;
}

std::string bytes_text(std::uint64_t bytes) {
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{} {}iB", bytes, kUnits[unit]);
}

}  // namespace isthmus
