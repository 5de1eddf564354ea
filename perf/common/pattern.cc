#include "perf/common/pattern.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "kernels/float16.h"

namespace isthmus {
namespace {

// Whatever the order and the dtype, no intermediate sum may exceed what bfloat16 holds exactly,
// 256.
std::int64_t input_value(OpKind op, RedOp red_op, int rank, int ranks, std::size_t phase) {
  const std::uint64_t random =
      mix64(static_cast<std::uint64_t>(rank) * Pattern::kPeriod + phase + 1);
  const std::int64_t many = ranks;
  if (op == OpKind::kAllGather) {
    return static_cast<std::int64_t>((phase * 7 + static_cast<std::size_t>(rank) * 31) %
                                     Pattern::kPeriod);
  }
  switch (red_op) {
    case RedOp::kMin:
    case RedOp::kMax:
      return static_cast<std::int64_t>(random % 200);
    case RedOp::kProd: {
      // At most three ranks contribute a 2: the product is at most 8.
      const std::int64_t turns = std::max<std::int64_t>(many, 8);
      return (rank + static_cast<std::int64_t>(phase)) % turns < 3 ? 2 : 1;
    }
    default: {
      if (many <= 128) {
        const std::int64_t most = std::min<std::int64_t>(256 / many - (many == 1 ? 1 : 0), 7);
        return static_cast<std::int64_t>(random % static_cast<std::uint64_t>(most + 1));
      }
      // About 64 of the ranks contribute a 1.
      return random % static_cast<std::uint64_t>(many / 64) == 0 ? 1 : 0;
    }
  }
}

std::int64_t combine(RedOp red_op, std::int64_t a, std::int64_t b) {
  switch (red_op) {
    case RedOp::kMin:
      return std::min(a, b);
    case RedOp::kMax:
      return std::max(a, b);
    case RedOp::kProd:
      return a * b;
    default:
      return a + b;
  }
}

template <typename T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Stores numerator / divisor: a true division, rounded once, or truncated for integers.
void store(DType dtype, std::byte* to, std::int64_t numerator, std::int64_t divisor) {
  const float single = static_cast<float>(numerator) / static_cast<float>(divisor);
  switch (dtype) {
    case DType::kFloat32:
      put(to, single);
      break;
    case DType::kFloat64:
      put(to, static_cast<double>(numerator) / static_cast<double>(divisor));
      break;
    case DType::kFloat16:
      put(to, half_from_float(single));
      break;
    case DType::kBFloat16:
      put(to, bfloat16_from_float(single));
      break;
    case DType::kInt32:
      put(to, static_cast<std::int32_t>(numerator / divisor));
      break;
    case DType::kInt64:
      put(to, numerator / divisor);
      break;
    case DType::kUint8:
    case DType::kByte:
      put(to, static_cast<std::uint8_t>(numerator / divisor));
      break;
  }
}

}  // namespace

Pattern::Pattern(OpKind op, DType dtype, RedOp red_op, int ranks)
    : element_bytes_(dtype_bytes(dtype)) {
  ISTHMUS_CHECK(ranks >= 1, "a pattern has ranks");
  inputs_.resize(static_cast<std::size_t>(ranks));
  for (Table& table : inputs_) {
    table.resize(2 * kPeriod * element_bytes_);
  }
  reduced_.resize(op == OpKind::kAllGather ? 0 : 2 * kPeriod * element_bytes_);
  for (std::size_t at = 0; at < 2 * kPeriod; ++at) {
    const std::size_t phase = at % kPeriod;
    std::int64_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t value = input_value(op, red_op, rank, ranks, phase);
      store(dtype, inputs_[static_cast<std::size_t>(rank)].data() + at * element_bytes_, value, 1);
      sum = rank == 0 ? value : combine(red_op, sum, value);
    }
    if (!reduced_.empty()) {
      store(dtype, reduced_.data() + at * element_bytes_, sum, red_op == RedOp::kAvg ? ranks : 1);
    }
  }
}

void Pattern::fill(void* data, int rank, std::size_t first, std::size_t count,
                   std::size_t salt) const {
  const Table& table = inputs_[static_cast<std::size_t>(rank)];
  std::byte* to = static_cast<std::byte*>(data);
  std::size_t phase = (first + salt) % kPeriod;
  while (count > 0) {
    const std::size_t now = std::min(count, kPeriod);
    std::memcpy(to, table.data() + phase * element_bytes_, now * element_bytes_);
    to += now * element_bytes_;
    count -= now;
    phase = (phase + now) % kPeriod;
  }
}

std::size_t Pattern::count_wrong(const Table& table, const void* data, std::size_t first,
                                 std::size_t count, std::size_t salt) const {
  const std::byte* from = static_cast<const std::byte*>(data);
  std::size_t phase = (first + salt) % kPeriod;
  std::size_t wrong = 0;
  while (count > 0) {
    const std::size_t now = std::min(count, kPeriod);
    const std::byte* expected = table.data() + phase * element_bytes_;
    if (std::memcmp(from, expected, now * element_bytes_) != 0) {
      for (std::size_t i = 0; i < now; ++i) {
        const std::size_t at = i * element_bytes_;
        wrong += std::memcmp(from + at, expected + at, element_bytes_) != 0 ? 1 : 0;
      }
    }
    from += now * element_bytes_;
    count -= now;
    phase = (phase + now) % kPeriod;
  }
  return wrong;
}

std::size_t Pattern::count_wrong_reduced(const void* data, std::size_t first, std::size_t count,
                                         std::size_t salt) const {
  return count_wrong(reduced_, data, first, count, salt);
}

std::size_t Pattern::count_wrong_of_rank(const void* data, int rank, std::size_t first,
                                         std::size_t count, std::size_t salt) const {
  return count_wrong(inputs_[static_cast<std::size_t>(rank)], data, first, count, salt);
}

}  // namespace isthmus
