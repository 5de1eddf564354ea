#pragma once

#include <span>
#include <string>
#include <string_view>

namespace isthmus {

// The candidate with the least edit distance to `word`, for "did you mean ...?". Empty when none
// is near (more than a third of the word would have to change).
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace isthmus
