// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/convert.h.
#pragma once

#include "numbers.h"

namespace hpcattn::ptx {

inline float float16_to_float(std::uint32_t code) {
  return emulator::decode_number<DType::kFloat16>(code & 0xffffU);
}

inline std::uint32_t float_to_float16(float value) {
  return emulator::encode_number(DType::kFloat16, value, false);
}

#if __CUDA_ARCH__ >= 890
template <DType kFp8>
inline std::uint32_t pack2_fp8(float low, float high) {
  static_assert(is_fp8(kFp8));
  return emulator::encode_number(kFp8, low, true) | emulator::encode_number(kFp8, high, true) << 8;
}

template <DType kFp8>
inline std::uint32_t pack4_fp8(float x0, float x1, float x2, float x3) {
  std::uint32_t packed = 0;
  int shift = 0;
  for (const float x : {x0, x1, x2, x3}) {
    packed |= emulator::encode_number(kFp8, x, true) << shift;
    shift += 8;
  }
  return packed;
}
#endif

}  // namespace hpcattn::ptx
