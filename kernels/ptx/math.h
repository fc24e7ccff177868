// SPDX-License-Identifier: Apache-2.0
// Conversions and special functions, one instruction each (PTX ISA 9.7.3 and 9.7.9.21).
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"

namespace hpcattn::ptx {

/// 2^x, within 2 ulp; 2^-inf is 0.
inline float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x), within 1 ulp outside of (0.5, 2), within 2^-22 there; log2(0) is -inf.
inline float lg2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x within 1 ulp.
inline float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / sqrt(x) within 2^-22.9; of infinity 0.
inline float rsqrt(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// The same, of a number that is not below float32's normal ones.
inline float rsqrt_of_normal(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// Two numbers of kType in one register, `low` in its lower half, rounded to nearest even.
template <DType kType>
inline std::uint32_t pack2(float low, float high) {
  std::uint32_t packed;
  if constexpr (kType == DType::kFloat16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

/// Bytes 0 to 3 of `a` are numbered 0 to 3, those of `b` 4 to 7; a digit of `selector` picks each.
inline std::uint32_t prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  return __byte_perm(a, b, selector);
}

/// The four fp8 numbers of `bytes` as pairs of kTo, exactly: `low` of its lower half. Below sm_89 a
/// NaN of e4m3 comes out as 480.
template <DType kFrom, DType kTo>
inline void widen4(std::uint32_t bytes, std::uint32_t& low, std::uint32_t& high) {
  static_assert(is_fp8(kFrom));
#if __CUDA_ARCH__ >= 890
  if constexpr (kFrom == DType::kFloat8E4M3 && kTo == DType::kFloat16) {
    // The halves of a register are operands of their own: nothing is shifted.
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }\n"
        : "=r"(low), "=r"(high)
        : "r"(bytes));
    return;
  }
#endif
  // Each byte becomes the upper one of 16 bits.
  const auto widen = [](std::uint32_t spread) {
    if constexpr (kFrom == DType::kFloat8E5M2 && kTo == DType::kFloat16) return spread;
    const auto fields = [spread](int shift) {
      return (spread & 0x80008000U) | ((spread & 0x7f007f00U) >> shift);
    };
    std::uint32_t pair;
    if constexpr (kTo == DType::kFloat16) {
      // Exponent and mantissa move into float16's fields; 2^8 makes up for the other bias.
      asm("mul.rn.f16x2 %0, %1, %2;\n" : "=r"(pair) : "r"(fields(1)), "r"(0x5c005c00U));
    } else {
      constexpr bool kE4M3 = kFrom == DType::kFloat8E4M3;
      // Into bfloat16's fields, then times 2^120 (e4m3) or 2^112 (e5m2): exact, subnormals too.
      constexpr std::uint32_t kFactor = kE4M3 ? 0x7b807b80U : 0x77807780U;
      asm("fma.rn.bf16x2 %0, %1, %2, %3;\n"
          : "=r"(pair)
          : "r"(fields(kE4M3 ? 4 : 3)), "r"(kFactor), "r"(0x80008000U));
    }
    return pair;
  };
  low = widen(prmt(bytes, 0, 0x1404));
  high = widen(prmt(bytes, 0, 0x3424));
}

}  // namespace hpcattn::ptx
