#pragma once

#include <string_view>

namespace isthmus {

// Equal to the project version in CMakeLists.txt: a test compares them.
inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace isthmus
