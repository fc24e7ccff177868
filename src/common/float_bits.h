// SPDX-License-Identifier: Apache-2.0
// Conversions between float and the narrow formats, one value at a time. Rounding is to nearest
// even; fp8 stores saturate at the largest finite value, and NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "hpcattn/dtype_id.h"

namespace hpcattn {

constexpr float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t(bits) << 16);
}

constexpr std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return std::uint16_t((bits >> 16) | 0x40U);
  return std::uint16_t((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// A format of 1 sign bit, `kExponentBits` and `kMantissaBits`, with subnormals.
/// kFinite: the top exponent holds numbers too (e4m3fn); its last code is NaN.
template <int kExponentBits, int kMantissaBits, bool kFinite>
struct NarrowFloat {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr std::uint32_t kSign = 1U << (kBits - 1);
  static constexpr std::uint32_t kTopExponent = (1U << kExponentBits) - 1;
  static constexpr std::uint32_t kInf = kTopExponent << kMantissaBits;  // a number where kFinite
  static constexpr std::uint32_t kNan = kFinite ? kSign - 1 : kInf | (1U << (kMantissaBits - 1));
  static constexpr std::uint32_t kMax = kFinite ? kNan - 1 : kInf - 1;

  static constexpr float decode(std::uint32_t bits) {
    const std::uint32_t sign = (bits & kSign) << (32 - kBits);
    const std::uint32_t magnitude = bits & (kSign - 1);
    if (kFinite ? magnitude == kNan : magnitude > kInf) {
      return std::bit_cast<float>(sign | 0x7fc00000U);
    }
    if (!kFinite && magnitude == kInf) return std::bit_cast<float>(sign | 0x7f800000U);
    const std::uint32_t exponent = magnitude >> kMantissaBits;
    const std::uint32_t mantissa = magnitude & ((1U << kMantissaBits) - 1);
    if (exponent == 0) {  // subnormal: mantissa * 2^(1 - bias - kMantissaBits), exact in float
      const float unit = std::bit_cast<float>(std::uint32_t(127 + 1 - kBias - kMantissaBits) << 23);
      const float value = float(mantissa) * unit;
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
    }
    return std::bit_cast<float>(sign | ((exponent + 127 - kBias) << 23) |
                                (mantissa << (23 - kMantissaBits)));
  }

  /// kSaturate: what is past the largest number becomes it, infinities too; else infinity.
  template <bool kSaturate>
  static constexpr std::uint32_t encode(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (all >> 31) << (kBits - 1);
    const std::uint32_t magnitude = all & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return sign | kNan;
    constexpr std::uint32_t kOverflow = kSaturate ? kMax : kInf;
    const int exponent = int(magnitude >> 23) - 127 + kBias;
    if (exponent >= 1) {
      constexpr int kDrop = 23 - kMantissaBits;
      const std::uint32_t rebased = magnitude - (std::uint32_t(127 - kBias) << 23);
      const std::uint32_t rounded =
          (rebased + (1U << (kDrop - 1)) - 1 + ((rebased >> kDrop) & 1U)) >> kDrop;
      return sign | (rounded > kMax ? kOverflow : rounded);
    }
    // Subnormal in the narrow format: a multiple of its smallest number, rounded to even by the
    // adder.
    const float unit = std::bit_cast<float>(std::uint32_t(127 + 1 - kBias - kMantissaBits) << 23);
    const float shifted = std::bit_cast<float>(magnitude) / unit + 8388608.0F;  // 2^23
    return sign |
           (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(8388608.0F));
  }
};

using Float16 = NarrowFloat<5, 10, false>;
using Float8E4M3 = NarrowFloat<4, 3, true>;
using Float8E5M2 = NarrowFloat<5, 2, false>;

/// The value of element `index` of memory of a float dtype.
inline float load_float(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<const float*>(data)[index];
    case DType::kFloat16: return Float16::decode(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kBFloat16: return bfloat16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kFloat8E4M3:
      return Float8E4M3::decode(static_cast<const std::uint8_t*>(data)[index]);
    case DType::kFloat8E5M2:
      return Float8E5M2::decode(static_cast<const std::uint8_t*>(data)[index]);
    default: return 0.0F;
  }
}

/// Writes element `index`; fp8 saturates, float16 overflows to infinity as everywhere.
inline void store_float(void* data, DType dtype, std::int64_t index, float value) {
  switch (dtype) {
    case DType::kFloat32: static_cast<float*>(data)[index] = value; return;
    case DType::kFloat16:
      static_cast<std::uint16_t*>(data)[index] = std::uint16_t(Float16::encode<false>(value));
      return;
    case DType::kBFloat16:
      static_cast<std::uint16_t*>(data)[index] = float_to_bfloat16(value);
      return;
    case DType::kFloat8E4M3:
      static_cast<std::uint8_t*>(data)[index] = std::uint8_t(Float8E4M3::encode<true>(value));
      return;
    case DType::kFloat8E5M2:
      static_cast<std::uint8_t*>(data)[index] = std::uint8_t(Float8E5M2::encode<true>(value));
      return;
    default: return;
  }
}

}  // namespace hpcattn
