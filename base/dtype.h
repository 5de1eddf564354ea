#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isthmus {

// Element types. The values are part of the wire format and of signatures: append only.
enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
  kByte = 7,  // moved, never reduced: any type that has no kernel
};

inline constexpr int kDTypeCount = 8;

// Reductions. The values are part of the wire format and of signatures: append only.
enum class RedOp : std::uint8_t { kSum = 0, kAvg = 1, kMin = 2, kMax = 3, kProd = 4 };

inline constexpr int kRedOpCount = 5;

constexpr std::size_t dtype_bytes(DType dtype) {
  constexpr std::size_t kBytes[kDTypeCount] = {4, 8, 2, 2, 4, 8, 1, 1};
  return kBytes[static_cast<std::size_t>(dtype)];
}

constexpr std::string_view dtype_name(DType dtype) {
  constexpr std::string_view kNames[kDTypeCount] = {"float32", "float64", "float16", "bfloat16",
                                                    "int32",   "int64",   "uint8",   "byte"};
  return kNames[static_cast<std::size_t>(dtype)];
}

constexpr std::string_view red_op_name(RedOp op) {
  constexpr std::string_view kNames[kRedOpCount] = {"SUM", "AVG", "MIN", "MAX", "PROD"};
  return kNames[static_cast<std::size_t>(op)];
}

}  // namespace isthmus
