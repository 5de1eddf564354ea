#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace isthmus::test {

// A binary format of 8 bits, computed from its definition without bit tricks: what the conversions
// are measured against. Immutable, any thread.
class Format8 {
 public:
  // `last`: the greatest positive pattern that is a finite number; `overflow`: what greater ones
  // become; `fnuz`: 0x80 is NaN.
  Format8(int mantissa_bits, int bias, std::uint8_t last, std::uint8_t overflow, bool fnuz)
      : mantissa_bits_(mantissa_bits), bias_(bias), last_(last), overflow_(overflow), fnuz_(fnuz) {
    for (int bits = 0; bits <= last; ++bits) {
      magnitudes_[value(static_cast<std::uint8_t>(bits))] = static_cast<std::uint8_t>(bits);
    }
  }

  std::uint8_t nan() const { return fnuz_ ? 0x80 : 0x7F; }

  double value(std::uint8_t bits) const {
    const std::uint8_t magnitude = bits & 0x7F;
    if (fnuz_ ? bits == nan() : magnitude > std::max(last_, overflow_)) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    double result = std::numeric_limits<double>::infinity();
    if (magnitude <= last_) {
      const int mantissa = magnitude & ((1 << mantissa_bits_) - 1);
      const int exponent = magnitude >> mantissa_bits_;
      result = std::ldexp(mantissa + (exponent == 0 ? 0 : 1 << mantissa_bits_),
                          std::max(exponent, 1) - bias_ - mantissa_bits_);
    }
    return (bits & 0x80) != 0 ? -result : result;
  }

  // The nearest number, the even pattern of two that are as near; too large is infinity or NaN.
  std::uint8_t round(double number) const {
    if (std::isnan(number)) {
      return nan();
    }
    const std::uint8_t sign = std::signbit(number) ? 0x80 : 0;
    const double magnitude = std::abs(number);
    const auto above = magnitudes_.lower_bound(magnitude);
    std::uint8_t result = 0;
    if (above == magnitudes_.end()) {
      // The number that would follow the last one decides where rounding overflows.
      const double last = magnitudes_.rbegin()->first;
      const double step = last - std::next(magnitudes_.rbegin())->first;
      const double distance = magnitude - last;
      if (distance > step / 2 || (distance == step / 2 && last_ % 2 == 1)) {
        return overflow_ == nan() ? nan() : static_cast<std::uint8_t>(sign | overflow_);
      }
      result = last_;
    } else if (above->first == magnitude) {
      result = above->second;
    } else {
      const auto below = std::prev(above);
      const double up = above->first - magnitude;
      const double down = magnitude - below->first;
      const bool rise = up < down || (up == down && above->second % 2 == 0);
      result = rise ? above->second : below->second;
    }
    return fnuz_ && result == 0 ? 0 : static_cast<std::uint8_t>(sign | result);
  }

 private:
  int mantissa_bits_;
  int bias_;
  std::uint8_t last_;
  std::uint8_t overflow_;
  bool fnuz_;
  std::map<double, std::uint8_t> magnitudes_;
};

inline const Format8& e4m3fn() {
  static const Format8 format(3, 7, 0x7E, 0x7E, false);
  return format;
}

inline const Format8& e5m2() {
  static const Format8 format(2, 15, 0x7B, 0x7C, false);
  return format;
}

inline const Format8& e4m3fnuz() {
  static const Format8 format(3, 8, 0x7F, 0x80, true);
  return format;
}

inline const Format8& e5m2fnuz() {
  static const Format8 format(2, 16, 0x7F, 0x80, true);
  return format;
}

}  // namespace isthmus::test
