#pragma once

#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/temp_folder.h"
#include "transport/file_store.h"

namespace isthmus::testing {

inline constexpr std::int64_t kNsPerMs = 1'000'000;

// Where ranks leave marks for the parent and for each other; made before the fork. Each process
// opens its own store in the folder.
class Marks {
 public:
  void put(const std::string& name, const std::string& text) const {
    const Status put = (*FileStore::create(folder_.path()))->set(name, text);
    if (!put.ok()) {
      std::fprintf(stderr, "%s\n", put.error().message.c_str());
    }
  }

  // Empty when there is none.
  std::string get(const std::string& name) const {
    const Result<std::string> text = (*FileStore::create(folder_.path()))->get(name, Deadline(0));
    return text.ok() ? *text : std::string();
  }

  bool wait_for(const std::string& name, std::int64_t at_most_ms = 20'000) const {
    return (*FileStore::create(folder_.path()))->get(name, Deadline::after_ms(at_most_ms)).ok();
  }

 private:
  TempFolder folder_ = TempFolder::create("marks").value();
};

inline std::string rank_name(int rank) {
  return fmt::format("rank{}", rank);
}

struct Told {
  std::int64_t at_ms = 0;
  std::string text;
};

// What a rank put under its name: "<number> <text>".
inline Told told(const Marks& marks, int rank) {
  Told out;
  std::istringstream line(marks.get(rank_name(rank)));
  line >> out.at_ms;
  std::getline(line, out.text);
  return out;
}

// "aab": the first two ranks on one node, the third on another.
inline std::vector<std::string> nodes_of(const std::string& layout) {
  std::vector<std::string> out;
  for (const char node : layout) {
    out.emplace_back(1, node);
  }
  return out;
}

}  // namespace isthmus::testing
