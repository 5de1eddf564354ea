#include "perf/common/pattern.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "kernels/float16.h"
#include "kernels/float8.h"

namespace isthmus {
namespace {

// The greatest whole number up to which the dtype holds all exactly, and a bit less where that is
// plenty: no partial sum may exceed it, whatever the order.
std::int64_t exact_up_to(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4m3fn:
    case DType::kFloat8E5m2:
    case DType::kFloat8E4m3fnuz:
    case DType::kFloat8E5m2fnuz:
      return 8;
    case DType::kInt8:
      return 127;
    case DType::kUint8:
      return 255;
    default:
      return 256;  // bfloat16's
  }
}

// The operand of a sum. Where not every rank can contribute, `limit` of them do, in turn.
std::int64_t summand(std::int64_t limit, std::int64_t rank, std::int64_t ranks, std::size_t phase,
                     std::uint64_t random) {
  const std::int64_t most = std::min<std::int64_t>(limit / ranks, 7);
  if (most >= 1) {
    return static_cast<std::int64_t>(random % static_cast<std::uint64_t>(most + 1));
  }
  return (rank + static_cast<std::int64_t>(phase)) % ranks < limit ? 1 : 0;
}

std::int64_t input_value(DType dtype, RedOp red_op, int rank, int ranks, std::size_t phase) {
  const std::uint64_t random =
      mix64(static_cast<std::uint64_t>(rank) * Pattern::kPeriod + phase + 1);
  const std::int64_t exact = exact_up_to(dtype);
  if (dtype == DType::kBool) {
    return static_cast<std::int64_t>(random % 2);
  }
  switch (red_op) {
    case RedOp::kMin:
    case RedOp::kMax:
      return static_cast<std::int64_t>(
          random % static_cast<std::uint64_t>(std::min<std::int64_t>(exact, 200)));
    case RedOp::kBand:
    case RedOp::kBor:
    case RedOp::kBxor:
      return static_cast<std::int64_t>(random % 128);
    case RedOp::kProd: {
      // At most three ranks contribute a 2: the product is at most 8.
      const std::int64_t turns = std::max<std::int64_t>(ranks, 8);
      return (rank + static_cast<std::int64_t>(phase)) % turns < 3 ? 2 : 1;
    }
    case RedOp::kPremulSum:
      return summand(exact / Pattern::kFactor, rank, ranks, phase, random);
    default:
      return summand(exact, rank, ranks, phase, random);
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
    case RedOp::kBand:
      return a & b;
    case RedOp::kBor:
      return a | b;
    case RedOp::kBxor:
      return a ^ b;
    default:
      return a + b;
  }
}

template <typename T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Stores numerator / divisor: a true division, rounded once, or truncated for integers. A complex
// number gets `imaginary` x that as its other part.
void store(DType dtype, std::byte* to, std::int64_t numerator, std::int64_t divisor,
           std::int64_t imaginary) {
  const float single = static_cast<float>(numerator) / static_cast<float>(divisor);
  const double twice = static_cast<double>(numerator) / static_cast<double>(divisor);
  const std::int64_t whole = numerator / divisor;
  switch (dtype) {
    case DType::kFloat32:
      return put(to, single);
    case DType::kFloat64:
      return put(to, twice);
    case DType::kFloat16:
      return put(to, half_from_float(single));
    case DType::kBFloat16:
      return put(to, bfloat16_from_float(single));
    case DType::kFloat8E4m3fn:
      return put(to, float8_from_float<Float8E4m3fn>(single));
    case DType::kFloat8E5m2:
      return put(to, float8_from_float<Float8E5m2>(single));
    case DType::kFloat8E4m3fnuz:
      return put(to, float8_from_float<Float8E4m3fnuz>(single));
    case DType::kFloat8E5m2fnuz:
      return put(to, float8_from_float<Float8E5m2fnuz>(single));
    case DType::kComplex64:
      put(to, single);
      return put(to + sizeof single, single * static_cast<float>(imaginary));
    case DType::kComplex128:
      put(to, twice);
      return put(to + sizeof twice, twice * static_cast<double>(imaginary));
    case DType::kBool:
      return put(to, static_cast<std::uint8_t>(whole != 0 ? 1 : 0));
    default:  // Integers: their low bytes, which come first.
      std::memcpy(to, &whole, dtype_bytes(dtype));
      return;
  }
}

}  // namespace

Pattern::Pattern(OpKind op, DType dtype, RedOp red_op, int ranks)
    : element_bytes_(dtype_bytes(dtype)) {
  ISTHMUS_CHECK(ranks >= 1, "a pattern has ranks");
  // (1 + 2i) x (real numbers), but a product of those would not stay so.
  const std::int64_t imaginary = red_op == RedOp::kProd ? 0 : 2;
  inputs_.resize(static_cast<std::size_t>(ranks));
  for (Table& table : inputs_) {
    table.resize(2 * kPeriod * element_bytes_);
  }
  reduced_.resize(op_traits(op).reduces ? 2 * kPeriod * element_bytes_ : 0);
  for (std::size_t at = 0; at < 2 * kPeriod; ++at) {
    const std::size_t phase = at % kPeriod;
    std::int64_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      std::byte* const to = inputs_[static_cast<std::size_t>(rank)].data() + at * element_bytes_;
      if (reduced_.empty()) {
        // Any bytes will do.
        const std::size_t value = (phase * 7 + static_cast<std::size_t>(rank) * 31) % kPeriod;
        std::memcpy(to, &value, std::min(sizeof value, element_bytes_));
        continue;
      }
      const std::int64_t value = input_value(dtype, red_op, rank, ranks, phase);
      store(dtype, to, value, 1, imaginary);
      sum = rank == 0 ? value : combine(red_op, sum, value);
    }
    if (!reduced_.empty()) {
      sum *= red_op == RedOp::kPremulSum ? kFactor : 1;
      store(dtype, reduced_.data() + at * element_bytes_, sum, red_op == RedOp::kAvg ? ranks : 1,
            imaginary);
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
