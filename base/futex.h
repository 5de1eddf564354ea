#pragma once

#include <atomic>
#include <cstdint>

namespace isthmus {

// Sleeps while *word == expected, at most timeout_ns. May return early for any reason. Private:
// word is used by this process only.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::int64_t timeout_ns);

void futex_wake_all(const std::atomic<std::uint32_t>& word);
void futex_wake_one(const std::atomic<std::uint32_t>& word);

}  // namespace isthmus
