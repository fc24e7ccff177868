// SPDX-License-Identifier: Apache-2.0
// Loading stored K and V as float32 vectors. Included by *.isa.cc alone.
#pragma once

#include "src/cpu/attention/simd.h"

namespace hpcattn::cpu::HPCATTN_ISA {

/// 16 bits a lane to 32, zeros above. GCC makes two halves of it for 16 lanes.
HPCATTN_INLINE UintVec widen_bits(ShortVec bits) {
#if defined(__AVX512F__)
  return (UintVec)_mm512_cvtepu16_epi32((__m256i)bits);
#else
  return __builtin_convertvector(bits, UintVec);
#endif
}

HPCATTN_INLINE ShortVec widen_bits(ByteVec bits) {
#if defined(__AVX512F__)
  return (ShortVec)_mm256_cvtepu8_epi16((__m128i)bits);
#else
  return __builtin_convertvector(bits, ShortVec);
#endif
}

/// IEEE half, 16 bits a lane.
HPCATTN_INLINE Vec half_to_float(ShortVec half) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtph_ps((__m256i)half);
#elif defined(__AVX2__)
  return (Vec)_mm256_cvtph_ps((__m128i)half);
#else
  // Exponent and mantissa moved into place are the number times 2^-112, subnormals too.
  const UintVec bits = widen_bits(half);
  const UintVec magnitude = (bits & 0x7fffU) << 13;
  const Vec scaled = (Vec)magnitude * 0x1p112F;
  const UintVec special = (UintVec)(magnitude >= 0x0f800000U) & 0x7f800000U;
  return (Vec)((UintVec)scaled | special | ((bits & 0x8000U) << 16));
#endif
}

template <KvType kType>
inline constexpr int kElementBytes = kType == KvType::kFloat32                                 ? 4
                                     : kType == KvType::kFloat16 || kType == KvType::kBFloat16 ? 2
                                                                                               : 1;

/// kLanes elements from `index` of a row.
template <KvType kType>
HPCATTN_INLINE Vec load_as_float(const std::byte* row, int index) {
  const std::byte* from = row + std::int64_t{index} * kElementBytes<kType>;
  if constexpr (kType == KvType::kFloat32) {
    return load_bits<Vec>(from);
  } else if constexpr (kType == KvType::kBFloat16) {
    return (Vec)(widen_bits(load_bits<ShortVec>(from)) << 16);
  } else if constexpr (kType == KvType::kFloat16) {
    return half_to_float(load_bits<ShortVec>(from));
  } else {
    const ShortVec bits = widen_bits(load_bits<ByteVec>(from));
    if constexpr (kType == KvType::kFloat8E5M2) {
      return half_to_float(bits << 8);  // a half cut short
    } else {
      // e4m3 has a bias of 7 where half has 15: the same bits are 2^-8 times the number. Its one
      // NaN code would be a number there.
      const ShortVec magnitude = bits & 0x7f;
      const ShortVec nan = (ShortVec)(magnitude == 0x7f) & 0x7c00;
      return half_to_float((ShortVec)(((bits & 0x80) << 8) | (magnitude << 7) | nan)) * 256.0F;
    }
  }
}

/// Rounds to nearest even; NaN stays NaN.
HPCATTN_INLINE ShortVec float_to_bfloat16(Vec value) {
  const UintVec bits = (UintVec)value;
  const UintVec rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const UintVec nan = (bits >> 16) | 0x40U;
  return __builtin_convertvector(value == value ? rounded : nan, ShortVec);
}

#if defined(__AVX2__)
HPCATTN_INLINE ShortVec float_to_half(Vec value) {
#if defined(__AVX512F__)
  return (ShortVec)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return (ShortVec)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
}
#endif

template <KvType kType>
void load_row(const std::byte* row, int length, float factor, float* to) {
  for (int i = 0; i < length; i += kLanes) store(to + i, load_as_float<kType>(row, i) * factor);
}

template <KvType kType>
void store_row(const float* from, int length, float factor, std::byte* row) {
  for (int i = 0; i < length; i += kLanes) {
    const Vec value = load(from + i) * factor;
    if constexpr (kType == KvType::kFloat32) {
      __builtin_memcpy(row + i * 4, &value, sizeof(value));
    } else {
#if defined(__AVX2__)
      const ShortVec bits =
          kType == KvType::kBFloat16 ? float_to_bfloat16(value) : float_to_half(value);
#else
      const ShortVec bits = float_to_bfloat16(value);
#endif
      __builtin_memcpy(row + i * 2, &bits, sizeof(bits));
    }
  }
}

}  // namespace hpcattn::cpu::HPCATTN_ISA
