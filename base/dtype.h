#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isthmus {

// Element types and reductions, and which of them go together (docs/dtypes.md). Pure functions, any
// thread. Arguments are enumerators: a byte from the wire is compared with the count before.

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
  kBool = 8,  // one byte; 0 is false, any other value true
  kInt8 = 9,
  kInt16 = 10,
  kUint16 = 11,
  kUint32 = 12,
  kUint64 = 13,
  kComplex64 = 14,  // two float32, real part first
  kComplex128 = 15,
  kFloat8E4m3fn = 16,    // no infinity; 448 is the largest number
  kFloat8E5m2 = 17,      // the upper half of a float16
  kFloat8E4m3fnuz = 18,  // "fnuz": one NaN (0x80), no infinity, no negative zero
  kFloat8E5m2fnuz = 19,
};

inline constexpr int kDTypeCount = 20;

// Reductions. The values are part of the wire format and of signatures: append only.
enum class RedOp : std::uint8_t {
  kSum = 0,
  kAvg = 1,
  kMin = 2,
  kMax = 3,
  kProd = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
  kPremulSum = 8,  // each rank multiplies by a factor of its own, then SUM
};

inline constexpr int kRedOpCount = 9;

// What arithmetic means for a type.
enum class DTypeKind : std::uint8_t { kOpaque, kBool, kInteger, kFloat, kComplex };

struct DTypeInfo {
  std::string_view name;
  std::uint8_t bytes;
  DTypeKind kind;
};

inline constexpr std::array<DTypeInfo, kDTypeCount> kDTypes = {{
    {"float32", 4, DTypeKind::kFloat},
    {"float64", 8, DTypeKind::kFloat},
    {"float16", 2, DTypeKind::kFloat},
    {"bfloat16", 2, DTypeKind::kFloat},
    {"int32", 4, DTypeKind::kInteger},
    {"int64", 8, DTypeKind::kInteger},
    {"uint8", 1, DTypeKind::kInteger},
    {"byte", 1, DTypeKind::kOpaque},
    {"bool", 1, DTypeKind::kBool},
    {"int8", 1, DTypeKind::kInteger},
    {"int16", 2, DTypeKind::kInteger},
    {"uint16", 2, DTypeKind::kInteger},
    {"uint32", 4, DTypeKind::kInteger},
    {"uint64", 8, DTypeKind::kInteger},
    {"complex64", 8, DTypeKind::kComplex},
    {"complex128", 16, DTypeKind::kComplex},
    {"float8_e4m3fn", 1, DTypeKind::kFloat},
    {"float8_e5m2", 1, DTypeKind::kFloat},
    {"float8_e4m3fnuz", 1, DTypeKind::kFloat},
    {"float8_e5m2fnuz", 1, DTypeKind::kFloat},
}};

constexpr std::size_t dtype_bytes(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].bytes;
}

constexpr std::string_view dtype_name(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

constexpr DTypeKind dtype_kind(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].kind;
}

// True of the floating-point types of 8 and 16 bits: a result is rounded when it is stored, so that
// a schedule with fewer levels is more exact.
constexpr bool dtype_rounds(DType dtype) {
  return dtype_kind(dtype) == DTypeKind::kFloat && dtype_bytes(dtype) <= 2;
}

// True of the types of which a sum of a few large numbers is infinite though their mean is not.
constexpr bool dtype_narrow(DType dtype) {
  return dtype_rounds(dtype) && dtype != DType::kBFloat16;
}

constexpr std::string_view red_op_name(RedOp op) {
  constexpr std::array<std::string_view, kRedOpCount> kNames = {
      "SUM", "AVG", "MIN", "MAX", "PROD", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return kNames[static_cast<std::size_t>(op)];
}

// Why a type cannot be reduced so, as the end of a sentence; empty where it can.
constexpr std::string_view why_not_reducible(DType dtype, RedOp op) {
  const DTypeKind kind = dtype_kind(dtype);
  const bool bitwise = op == RedOp::kBand || op == RedOp::kBor || op == RedOp::kBxor;
  const bool ordering = op == RedOp::kMin || op == RedOp::kMax;
  if (kind == DTypeKind::kOpaque) {
    return "this type is moved as bytes and never combined";
  }
  if (bitwise && (kind == DTypeKind::kFloat || kind == DTypeKind::kComplex)) {
    return "bits are combined of integers and bool only";
  }
  if (ordering && kind == DTypeKind::kComplex) {
    return "complex numbers have no order";
  }
  if (op == RedOp::kAvg && kind == DTypeKind::kBool) {
    return "the mean of truth values is no truth value; convert them to a number type first";
  }
  if (op == RedOp::kPremulSum && (kind == DTypeKind::kInteger || kind == DTypeKind::kBool)) {
    return "its factor is a real number, so it takes floating-point and complex types only";
  }
  return {};
}

constexpr bool reducible(DType dtype, RedOp op) {
  return why_not_reducible(dtype, op).empty();
}

}  // namespace isthmus
