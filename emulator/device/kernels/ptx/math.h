// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/math.h. What "flushes" makes zeros of numbers below the normal ones.
#pragma once

#include "numbers.h"

namespace hpcattn::ptx {

inline float flushed(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

inline float ex2(float x) { return flushed(std::exp2(flushed(x))); }
inline float lg2(float x) { return std::log2(x); }
inline float rsqrt(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float rsqrt_of_normal(float x) { return rsqrt(flushed(x)); }
inline float rcp(float x) { return flushed(1.0F / flushed(x)); }

template <DType kType>
inline std::uint32_t pack2(float low, float high) {
  return emulator::encode_number(kType, low, false) | emulator::encode_number(kType, high, false)
                                                          << 16;
}

inline std::uint32_t prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  return __byte_perm(a, b, selector);
}

/// Below sm_89 a NaN of e4m3 comes out as 480 here too.
template <DType kFrom, DType kTo>
inline void widen4(std::uint32_t bytes, std::uint32_t& low, std::uint32_t& high) {
  const auto widen = [](std::uint32_t code) {
#if __CUDA_ARCH__ < 890
    constexpr bool kBits = true;
#else
    constexpr bool kBits = kTo != DType::kFloat16;
#endif
    double value = emulator::decode_number<kFrom>(code);
    if (kBits && kFrom == DType::kFloat8E4M3 && (code & 0x7fU) == 0x7fU) {
      value = (code & 0x80U) != 0 ? -480.0 : 480.0;
    }
    return emulator::encode_number(kTo, value, false);
  };
  low = widen(bytes & 0xffU) | widen(bytes >> 8 & 0xffU) << 16;
  high = widen(bytes >> 16 & 0xffU) | widen(bytes >> 24) << 16;
}

}  // namespace hpcattn::ptx
