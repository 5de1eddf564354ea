#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace isthmus {

// A value of a JSON text and where it stands ("nodes[3].ranks"), read strictly: whatever is not as
// expected throws a Refusal that says where, what was expected and what is there. Used inside
// read_json(), which turns that into an Error. Points into the parsed text.
class JsonReader {
 public:
  struct Refusal : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  JsonReader(const nlohmann::json& json, std::string path) : json_(json), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& expected) const;

  // Refuses keys that are not among these, with the nearest one.
  void only(std::initializer_list<std::string_view> keys) const;

  bool has(std::string_view key) const;

  // Refuse what is missing.
  JsonReader at(std::string_view key) const;
  JsonReader at(std::size_t index) const;

  bool is_list() const { return json_.is_array(); }

  // This one, if it is a list.
  const JsonReader& list() const;

  std::size_t size() const { return json_.size(); }

  // A whole number within bounds; `what` names it.
  std::int64_t whole(std::int64_t least, std::int64_t most, std::string_view what) const;

  // Finite and not negative.
  double number() const;

  // A member of an object that may be missing.
  bool flag(std::string_view key, bool otherwise) const;
  std::string text(std::string_view key, std::string_view otherwise) const;

 private:
  const nlohmann::json& json_;
  std::string path_;
};

// What read_json() says of a text that was refused, and why one is no JSON.
Error json_error(std::string_view what, std::string_view why);
std::string parse_failure(std::string_view text);

// Parses `text` and hands it to `read`; `what` names it in errors.
template <typename T>
Result<T> read_json(std::string_view text, std::string_view what, T (*read)(const JsonReader&)) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    return json_error(what, parse_failure(text));
  }
  try {
    return read(JsonReader(json, ""));
  } catch (const JsonReader::Refusal& refusal) {
    return json_error(what, refusal.what());
  }
}

}  // namespace isthmus
