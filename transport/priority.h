#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus {

// Which of several operations goes first where they compete on their rank. Every rank may choose
// for itself. In the order in which they go.
enum class Priority : std::uint8_t { kUrgent = 0, kNormal = 1, kBackground = 2 };

inline constexpr std::size_t kPriorityCount = 3;

}  // namespace isthmus
