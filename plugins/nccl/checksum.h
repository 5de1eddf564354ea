#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::nccl {

// Low half of XXH3-64, as in docs/wire.md.
std::uint32_t payload_check(const std::byte* data, std::size_t bytes);

}  // namespace isthmus::nccl
