#pragma once

// Included by shim.cc only: what a process group is made with (pg_options).
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "plugins/torch/store.h"
#include "plugins/torch/versions.h"
#include "transport/priority.h"

namespace isthmus::plugin {

inline constexpr std::array<std::string_view, kPriorityCount> kPriorityNames = {"urgent", "normal",
                                                                                "background"};

inline std::string priority_name(Priority priority) {
  return std::string(kPriorityNames.at(static_cast<std::size_t>(priority)));
}

inline Priority priority_of(std::string_view name) {
  for (std::size_t i = 0; i < kPriorityCount; ++i) {
    if (kPriorityNames.at(i) == name) {
      return static_cast<Priority>(i);
    }
  }
  refuse(Code::kInvalidArgument,
         c10::str("isthmus knows the priorities urgent, normal and background, got ", name, "."));
}

struct Options final : CloneableOptions {
  explicit Options(milliseconds limit = kBackendDefaultTimeout) : CloneableOptions(kName, limit) {}

  c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
    return c10::make_intrusive<Options>(*this);
  }

  Priority priority = Priority::kNormal;  // of the group's operations that give none
};

// Of options of any kind: a group may be split from with those of another backend.
inline Priority priority_of(const BackendOptions& options) {
  const auto* ours = dynamic_cast<const Options*>(&options);
  return ours == nullptr ? Priority::kNormal : ours->priority;
}

}  // namespace isthmus::plugin
