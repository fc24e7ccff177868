// SPDX-License-Identifier: Apache-2.0
// Conversions between float32 and the narrow formats (PTX ISA 9.7.9.21, cvt).
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"

namespace hpcattn::ptx {

/// The float16 number in the low half of `code`, exactly.
inline float float16_to_float(std::uint32_t code) {
  float value;
  asm("{ .reg .b16 half; cvt.u16.u32 half, %1; cvt.f32.f16 %0, half; }\n"
      : "=f"(value)
      : "r"(code));
  return value;
}

/// The code of `value` in float16, rounded to nearest even; past its largest number: infinity.
inline std::uint32_t float_to_float16(float value) {
  std::uint32_t code;
  asm("{ .reg .b16 half; cvt.rn.f16.f32 half, %1; cvt.u32.u16 %0, half; }\n"
      : "=r"(code)
      : "f"(value));
  return code;
}

#if __CUDA_ARCH__ >= 890
/// Two numbers in the low half of a register, `low` in its lower byte, rounded to nearest even.
/// What lies past the largest number becomes it, infinities too; NaN stays NaN.
template <DType kFp8>
inline std::uint32_t pack2_fp8(float low, float high) {
  static_assert(is_fp8(kFp8));
  std::uint32_t packed;
  if constexpr (kFp8 == DType::kFloat8E4M3) {
    asm("{ .reg .b16 pair; cvt.rn.satfinite.e4m3x2.f32 pair, %1, %2; cvt.u32.u16 %0, pair; }\n"
        : "=r"(packed)
        : "f"(high), "f"(low));
  } else {
    asm("{ .reg .b16 pair; cvt.rn.satfinite.e5m2x2.f32 pair, %1, %2; cvt.u32.u16 %0, pair; }\n"
        : "=r"(packed)
        : "f"(high), "f"(low));
  }
  return packed;
}

/// Four numbers, the first in the lowest byte, rounded likewise.
template <DType kFp8>
inline std::uint32_t pack4_fp8(float x0, float x1, float x2, float x3) {
  static_assert(kFp8 == DType::kFloat8E4M3);
  std::uint32_t packed;
  asm("{ .reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high}; }\n"
      : "=r"(packed)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return packed;
}
#endif

}  // namespace hpcattn::ptx
