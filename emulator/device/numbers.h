// SPDX-License-Identifier: Apache-2.0
// The narrow formats by their definitions: a number is rounded in float64 by its quantum, a code is
// read field by field. Slow, and nothing in common with what the kernels do.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "hpcattn/dtype_id.h"

namespace hpcattn::emulator {

struct Format {
  int mantissa_bits;
  int bias;
  std::uint32_t largest;   // code of the largest number
  std::uint32_t infinity;  // code, or 0 where there is none
  std::uint32_t nan;
  int bits;
};

constexpr Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4M3: return {3, 7, 0x7e, 0, 0x7f, 8};
    case DType::kFloat8E5M2: return {2, 15, 0x7b, 0x7c, 0x7f, 8};
    case DType::kFloat16: return {10, 15, 0x7bff, 0x7c00, 0x7fff, 16};
    default: return {7, 127, 0x7f7f, 0x7f80, 0x7fff, 16};
  }
}

inline float decode_by_fields(DType dtype, std::uint32_t code) {
  const Format f = format_of(dtype);
  const std::uint32_t magnitude = code & ((1U << (f.bits - 1)) - 1);
  const float sign = code >> (f.bits - 1) != 0 ? -1.0F : 1.0F;
  if (f.infinity != 0 && magnitude == f.infinity) return sign * INFINITY;
  if (magnitude > f.largest) return NAN;
  const auto exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  const auto mantissa = static_cast<int>(magnitude & ((1U << f.mantissa_bits) - 1));
  const int whole = exponent > 0 ? mantissa + (1 << f.mantissa_bits) : mantissa;
  const int power = (exponent > 0 ? exponent : 1) - f.bias - f.mantissa_bits;
  return sign * static_cast<float>(std::ldexp(whole, power));
}

template <DType kDType>
float decode_number(std::uint32_t code) {
  constexpr std::size_t kCodes = std::size_t{1} << format_of(kDType).bits;
  static const std::array<float, kCodes> table = [] {
    std::array<float, kCodes> numbers{};
    for (std::size_t i = 0; i < kCodes; ++i) {
      numbers[i] = decode_by_fields(kDType, static_cast<std::uint32_t>(i));
    }
    return numbers;
  }();
  return table[code & (kCodes - 1)];
}

/// To nearest, ties to even; what is too large becomes infinity, or with `saturate` the largest.
inline std::uint32_t encode_number(DType dtype, double value, bool saturate) {
  const Format f = format_of(dtype);
  if (std::isnan(value)) return f.nan;
  const std::uint32_t sign = (std::signbit(value) ? 1U : 0U) << (f.bits - 1);
  const double size = std::fabs(value);
  const std::uint32_t too_large = saturate || f.infinity == 0 ? f.largest : f.infinity;
  if (std::isinf(size)) return sign | too_large;
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), 1 - f.bias);
  const double steps = std::nearbyint(std::ldexp(size, f.mantissa_bits - exponent));
  // Steps past the last of an exponent carry into the next one's field.
  const std::int64_t code = (std::int64_t{exponent + f.bias} << f.mantissa_bits) +
                            static_cast<std::int64_t>(steps) - (std::int64_t{1} << f.mantissa_bits);
  return sign | (code > std::int64_t{f.largest} ? too_large : static_cast<std::uint32_t>(code));
}

}  // namespace hpcattn::emulator
