#include "topology/json_reader.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "base/nearest.h"

namespace isthmus {

namespace {

// Enough of a value to find it by.
constexpr std::size_t kShownMax = 60;

std::string shown(const nlohmann::json& json) {
  std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kShownMax) {
    text.resize(kShownMax);
    text += "...";
  }
  return text;
}

}  // namespace

void JsonReader::refuse(const std::string& expected) const {
  throw Refusal(fmt::format("{}: expected {}, got {}", path_.empty() ? "the whole" : path_,
                            expected, shown(json_)));
}

void JsonReader::only(std::initializer_list<std::string_view> keys) const {
  if (!json_.is_object()) {
    refuse("an object");
  }
  for (const auto& item : json_.items()) {
    if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) {
      const std::vector<std::string> known(keys.begin(), keys.end());
      const std::string near = nearest(item.key(), known);
      throw Refusal(fmt::format("{}{}{}: no such key; {}", path_, path_.empty() ? "" : ".",
                                item.key(),
                                near.empty() ? fmt::format("expected {}", fmt::join(known, ", "))
                                             : fmt::format("did you mean \"{}\"?", near)));
    }
  }
}

bool JsonReader::has(std::string_view key) const {
  return json_.contains(std::string(key));
}

JsonReader JsonReader::at(std::string_view key) const {
  const auto found = json_.find(std::string(key));
  if (found == json_.end()) {
    refuse(fmt::format("\"{}\" in it", key));
  }
  return {*found, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
}

JsonReader JsonReader::at(std::size_t index) const {
  return {list().json_.at(index), fmt::format("{}[{}]", path_, index)};
}

const JsonReader& JsonReader::list() const {
  if (!json_.is_array()) {
    refuse("a list");
  }
  return *this;
}

std::int64_t JsonReader::whole(std::int64_t least, std::int64_t most, std::string_view what) const {
  if (json_.is_number_integer()) {
    const bool large =
        json_.is_number_unsigned() && json_.get<std::uint64_t>() > static_cast<std::uint64_t>(most);
    const std::int64_t value = large ? most : json_.get<std::int64_t>();
    if (!large && value >= least && value <= most) {
      return value;
    }
  }
  refuse(least == most ? fmt::format("{}, {}", what, least)
                       : fmt::format("{} from {} to {}", what, least, most));
}

double JsonReader::number() const {
  if (!json_.is_number() || !std::isfinite(json_.get<double>()) || json_.get<double>() < 0.0) {
    refuse("a number that is not negative");
  }
  return json_.get<double>();
}

bool JsonReader::flag(std::string_view key, bool otherwise) const {
  if (!has(key)) {
    return otherwise;
  }
  const JsonReader value = at(key);
  if (!value.json_.is_boolean()) {
    value.refuse("true or false");
  }
  return value.json_.get<bool>();
}

std::string JsonReader::text(std::string_view key, std::string_view otherwise) const {
  if (!has(key)) {
    return std::string(otherwise);
  }
  const JsonReader value = at(key);
  if (!value.json_.is_string()) {
    value.refuse("text");
  }
  return value.json_.get<std::string>();
}

Error json_error(std::string_view what, std::string_view why) {
  return {Code::kInvalidArgument, 0, -1,
          fmt::format("The {} cannot be used: {}. docs/topology.md has its form.", what, why)};
}

// The parser's own words, which have the line and the column.
std::string parse_failure(std::string_view text) {
  try {
    return nlohmann::json::parse(text).is_null() ? "it is empty" : "it is no JSON";
  } catch (const nlohmann::json::parse_error& error) {
    return error.what();
  }
}

}  // namespace isthmus
