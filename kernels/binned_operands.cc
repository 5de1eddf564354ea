// The table of binned sums in scalar code, the choice among its formats, and what a rank does to
// its own operands.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/binned.h"
#include "kernels/binned_element.h"
#include "kernels/binned_table.h"

namespace isthmus {
namespace {

// Numbers that are handled at once, in the first-level cache.
constexpr std::size_t kBlock = 512;
constexpr std::size_t kNumberBytesMax = 8;
constexpr std::size_t kSumBytesMax = 16;

template <class Format>
BinnedKernels kernels_of() {
  return {.number_bytes = sizeof(typename Format::Word),
          .sum_bytes = sizeof(typename Format::Sum),
          .bin = &binned::bin_elements<Format>,
          .add = &binned::add_elements<typename Format::Sum>,
          .unbin = &binned::unbin_elements<Format>};
}

template <class Type, int kWidth>
void fill_float(BinnedTable& table, DType dtype) {
  const auto at = static_cast<std::size_t>(dtype);
  if constexpr (kWidth != 0) {
    table.narrow[at] = kernels_of<binned::NarrowFormat<Type, kWidth>>();
  }
  table.wide[at] = kernels_of<binned::WideFormat<Type, binned::kWideWidth>>();
  table.widest[at] = kernels_of<binned::WideFormat<Type, binned::kWidestWidth>>();
}

// An integer in 64 bits, for its mean.
template <class T>
struct MeanFormat {
  using Word = T;
  using Sum = std::int64_t;

  static Sum bin(Word word) { return word; }

  static Word unbin(Sum sum, std::int32_t divisor) { return static_cast<T>(sum / divisor); }
};

template <class T>
void fill_mean(BinnedTable& table, DType dtype) {
  BinnedKernels& mean = table.mean[static_cast<std::size_t>(dtype)];
  mean = {.number_bytes = sizeof(T),
          .sum_bytes = sizeof(std::int64_t),
          .bin = &binned::bin_elements<MeanFormat<T>>,
          .add = reduce_kernel(DType::kInt64, RedOp::kSum),
          .unbin = &binned::unbin_elements<MeanFormat<T>>};
}

DType number_type(DType dtype) {
  if (dtype == DType::kComplex64) {
    return DType::kFloat32;
  }
  return dtype == DType::kComplex128 ? DType::kFloat64 : dtype;
}

BinnedKernels choose(const BinnedTable& table, DType dtype, RedOp op, std::uint64_t operands) {
  const DType number = number_type(dtype);
  const auto at = static_cast<std::size_t>(number);
  ISTHMUS_CHECK(order_matters(dtype, op) && why_not_binned(dtype, op, operands).empty(),
                "a reduction that has binned sums");
  if (dtype_kind(number) == DTypeKind::kInteger) {
    return table.mean[at];
  }
  const std::uint64_t narrow_most = number == DType::kFloat64   ? 0
                                    : number == DType::kFloat32 ? binned::kSingleOperandsMax
                                                                : binned::kSmallOperandsMax;
  if (operands <= narrow_most) {
    return table.narrow[at];
  }
  return operands <= binned::kWideOperandsMax ? table.wide[at] : table.widest[at];
}

// Bytes of a block of the dtype's numbers, each multiplied by the factor.
const void* scaled(DType dtype, const double* factor, const void* src, void* into,
                   std::size_t elements) {
  if (factor == nullptr) {
    return src;
  }
  scale_kernel(dtype)(into, src, elements, *factor);
  return into;
}

const void* at_byte(const void* base, std::size_t offset) {
  return static_cast<const char*>(base) + offset;
}

// The sums of up to kBlock numbers of every operand, from number `first` on.
void bin_block(const BinnedKernels& kernels, DType dtype, const Operands& operands,
               std::size_t first, void* sums, std::size_t numbers) {
  alignas(64) char multiplied[kBlock * kNumberBytesMax];
  alignas(64) char next[kBlock * kSumBytesMax];
  for (std::size_t k = 0; k < operands.source_count; ++k) {
    const void* const from =
        scaled(dtype, operands.factor, at_byte(operands.sources[k], first * kernels.number_bytes),
               multiplied, numbers / numbers_of(dtype));
    kernels.bin(k == 0 ? sums : next, from, numbers);
    if (k != 0) {
      const void* const both[] = {sums, next};
      kernels.add(sums, both, 2, numbers, 1);
    }
  }
}

}  // namespace

BinnedTable binned_scalar_table() {
  BinnedTable table;
  fill_float<binned::SingleNumber, binned::kSingleWidth>(table, DType::kFloat32);
  fill_float<binned::DoubleNumber, 0>(table, DType::kFloat64);
  fill_float<binned::HalfNumber, binned::kSmallWidth>(table, DType::kFloat16);
  fill_float<binned::BFloat16Number, binned::kSmallWidth>(table, DType::kBFloat16);
  fill_float<binned::Float8Number<Float8E4m3fn>, binned::kSmallWidth>(table, DType::kFloat8E4m3fn);
  fill_float<binned::Float8Number<Float8E5m2>, binned::kSmallWidth>(table, DType::kFloat8E5m2);
  fill_float<binned::Float8Number<Float8E4m3fnuz>, binned::kSmallWidth>(table,
                                                                        DType::kFloat8E4m3fnuz);
  fill_float<binned::Float8Number<Float8E5m2fnuz>, binned::kSmallWidth>(table,
                                                                        DType::kFloat8E5m2fnuz);
  fill_mean<std::int8_t>(table, DType::kInt8);
  fill_mean<std::int16_t>(table, DType::kInt16);
  fill_mean<std::int32_t>(table, DType::kInt32);
  fill_mean<std::uint8_t>(table, DType::kUint8);
  fill_mean<std::uint16_t>(table, DType::kUint16);
  fill_mean<std::uint32_t>(table, DType::kUint32);
  return table;
}

std::string why_not_binned(DType dtype, RedOp op, std::uint64_t operands) {
  if (order_matters(dtype, op) && op == RedOp::kProd) {
    return fmt::format(
        "the product of {} numbers depends on their order, and has no form that "
        "does not; with ISTHMUS_DETERMINISTIC=1 take the SUM of logarithms",
        dtype_name(dtype));
  }
  if (order_matters(dtype, op) && operands > kBinnedOperandsMax) {
    return fmt::format("{} operands, expected at most {} with ISTHMUS_DETERMINISTIC=1", operands,
                       kBinnedOperandsMax);
  }
  return {};
}

BinnedKernels binned_kernels(DType dtype, RedOp op, std::uint64_t operands) {
  static const BinnedTable table = resolve_binned_table();
  return choose(table, dtype, op, operands);
}

BinnedKernels binned_reference(DType dtype, RedOp op, std::uint64_t operands) {
  static const BinnedTable table = binned_scalar_table();
  return choose(table, dtype, op, operands);
}

void bin_operands(const BinnedKernels& kernels, DType dtype, const Operands& operands, void* sums,
                  std::size_t count) {
  const std::size_t total = count * numbers_of(dtype);
  for (std::size_t at = 0; at < total; at += kBlock) {
    bin_block(kernels, dtype, operands, at, static_cast<char*>(sums) + at * kernels.sum_bytes,
              std::min(kBlock, total - at));
  }
}

void combine_operands(DType dtype, RedOp op, const Operands& operands, void* dst,
                      std::size_t count) {
  alignas(64) char numbers[2][kBlock * kNumberBytesMax];
  const std::size_t element = dtype_bytes(dtype);
  const std::size_t block = sizeof(numbers[0]) / element;
  const ReduceFn reduce = reduce_kernel(dtype, op == RedOp::kAvg ? RedOp::kSum : op);
  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t some = std::min(block, count - at);
    const void* sum = nullptr;
    for (std::size_t k = 0; k < operands.source_count; ++k) {
      const void* const from =
          scaled(dtype, operands.factor, at_byte(operands.sources[k], at * element),
                 numbers[k != 0], some);
      if (k == 0) {
        sum = from;
        continue;
      }
      const void* const both[] = {sum, from};
      reduce(numbers[0], both, 2, some, 1);
      sum = numbers[0];
    }
    std::memcpy(static_cast<char*>(dst) + at * element, sum, some * element);
  }
}

void reduce_operands(const BinnedKernels* binned, DType dtype, RedOp op, const Operands& operands,
                     void* dst, std::size_t count) {
  const std::int32_t divisor =
      op == RedOp::kAvg ? static_cast<std::int32_t>(operands.source_count) : 1;
  if (binned == nullptr) {
    combine_operands(dtype, op, operands, dst, count);
    if (divisor != 1) {
      const void* const sum = dst;
      reduce_kernel(dtype, op)(dst, &sum, 1, count, divisor);
    }
    return;
  }
  alignas(64) char sums[kBlock * kSumBytesMax];
  const std::size_t total = count * numbers_of(dtype);
  for (std::size_t at = 0; at < total; at += kBlock) {
    const std::size_t some = std::min(kBlock, total - at);
    bin_block(*binned, dtype, operands, at, sums, some);
    binned->unbin(static_cast<char*>(dst) + at * binned->number_bytes, sums, some, divisor);
  }
}

}  // namespace isthmus
