// SPDX-License-Identifier: Apache-2.0
// Float formats in vectors, from and to float32. They do what src/common/float_bits.h does, with
// selects in the place of its branches. Included by *.isa.cc alone.
#pragma once

#include <cstdint>

#include "src/cpu/attention/formats.h"
#include "src/cpu/attention/simd.h"

namespace hpcattn::cpu::HPCATTN_ISA {

// Rows are float64 between load and store, and a vector of doubles has half as many lanes.
inline constexpr int kHalfLanes = kLanes / 2;
typedef float HalfVec __attribute__((vector_size(kHalfLanes * 4)));
typedef double DoubleVec __attribute__((vector_size(kHalfLanes * 8)));
typedef std::int64_t LongVec __attribute__((vector_size(kHalfLanes * 8)));

/// Cut to 24 bits, of which the last is set where anything was cut: rounded to odd. A second
/// rounding, to fewer bits, then gives what one rounding gives, ties included.
HPCATTN_INLINE DoubleVec round_to_odd(DoubleVec value) {
  constexpr std::int64_t kCut = (std::int64_t{1} << 29) - 1;
  const auto bits = (LongVec)value;
  return (DoubleVec)((bits | ((bits & kCut) + kCut)) & ~kCut);
}

HPCATTN_INLINE Vec join(HalfVec low, HalfVec high) {
#if defined(__AVX512F__)
  return (Vec)_mm512_insertf32x8(_mm512_castps256_ps512((__m256)low), (__m256)high, 1);
#elif defined(__AVX2__)
  return (Vec)_mm256_insertf128_ps(_mm256_castps128_ps256((__m128)low), (__m128)high, 1);
#else
  Vec both;
  __builtin_memcpy(&both, &low, sizeof(low));
  __builtin_memcpy(reinterpret_cast<char*>(&both) + sizeof(low), &high, sizeof(high));
  return both;
#endif
}

// The conversions between lanes of unlike widths are intrinsics where GCC 12 takes the lanes of
// __builtin_convertvector one by one: a row loads and stores two to three times as fast.

/// kHalfLanes bfloat16 numbers.
HPCATTN_INLINE HalfVec load_bfloat16(const char* codes) {
#if defined(__AVX512F__)
  const __m256i bits = _mm256_cvtepu16_epi32(load_bits<__m128i>(codes));
  return (HalfVec)_mm256_slli_epi32(bits, 16);
#elif defined(__AVX2__)
  const __m128i bits = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  return (HalfVec)_mm_slli_epi32(bits, 16);
#else
  HalfVec values;
  for (int lane = 0; lane < kHalfLanes; ++lane) {
    const auto bits = load_bits<std::uint16_t>(codes + 2 * lane);
    values[lane] = __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
  return values;
#endif
}

/// kHalfLanes float16 numbers.
HPCATTN_INLINE HalfVec load_float16(const char* codes) {
#if defined(__AVX512F__)
  return (HalfVec)_mm256_cvtph_ps(load_bits<__m128i>(codes));
#elif defined(__AVX2__)
  return (HalfVec)_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
#else
  ShortVec half{};
  __builtin_memcpy(&half, codes, kHalfLanes * 2);
  const Vec values = half_to_float(half);
  return load_bits<HalfVec>(&values);
#endif
}

/// The low 16 bits of each lane, where the rest is 0.
HPCATTN_INLINE ShortVec narrow_to_shorts(UintVec codes) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto all = (__m256i)codes;
  return (ShortVec)_mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
#else
  return __builtin_convertvector(codes, ShortVec);
#endif
}

/// The low byte of each lane, where the rest is 0.
HPCATTN_INLINE ByteVec narrow_to_bytes(UintVec codes) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto words = (__m128i)narrow_to_shorts(codes);
  const __m128i bytes = _mm_packus_epi16(words, words);
  return load_bits<ByteVec>(&bytes);
#else
  return __builtin_convertvector(codes, ByteVec);
#endif
}

/// Codes of a format of `kExponentBits` and `kMantissaBits`, one a lane. `kLimit` is the code of
/// what lies past its largest number, `kNan` that of a NaN.
template <int kExponentBits, int kMantissaBits, std::int32_t kLimit, std::int32_t kNan>
HPCATTN_INLINE UintVec encode_narrow(Vec value) {
  constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr int kDrop = 23 - kMantissaBits;
  const IntVec magnitude = (IntVec)value & 0x7fffffff;
  const UintVec sign = ((UintVec)value >> (32 - kBits)) & (1U << (kBits - 1));
  const IntVec rebased = magnitude - ((127 - kBias) << 23);
  const IntVec normal = (rebased + ((1 << (kDrop - 1)) - 1) + ((rebased >> kDrop) & 1)) >> kDrop;
  // Below the normal numbers: adding 2^23 units of the format leaves whole units, rounded to even.
  constexpr std::int32_t kMagic = (127 + 24 - kBias - kMantissaBits) << 23;
  const IntVec subnormal = (IntVec)((Vec)magnitude + __builtin_bit_cast(float, kMagic)) - kMagic;
  IntVec code = magnitude < ((128 - kBias) << 23) ? subnormal : normal;
  code = code > kLimit ? broadcast(kLimit) : code;
  code = magnitude > 0x7f800000 ? broadcast(kNan) : code;
  return (UintVec)code | sign;
}

struct Float32 {
  using Codes = Vec;
  static constexpr bool kHasFloatsBits = true;
  HPCATTN_INLINE static HalfVec load(const char* codes) { return load_bits<HalfVec>(codes); }
  HPCATTN_INLINE static Codes encode(Vec value) { return value; }
};

struct BFloat16 {
  using Codes = ShortVec;
  static constexpr bool kHasFloatsBits = false;
  HPCATTN_INLINE static HalfVec load(const char* codes) { return load_bfloat16(codes); }
  HPCATTN_INLINE static Codes encode(Vec value) {
    const auto bits = (UintVec)value;
    const UintVec rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const UintVec nan = (bits >> 16) | 0x40U;
    return narrow_to_shorts(value == value ? rounded : nan);
  }
};

struct Float16 {
  using Codes = ShortVec;
  static constexpr bool kHasFloatsBits = false;
  HPCATTN_INLINE static HalfVec load(const char* codes) { return load_float16(codes); }
  HPCATTN_INLINE static Codes encode(Vec value) {
#if defined(__AVX2__)
    return float_to_half(value);
#else
    return narrow_to_shorts(encode_narrow<5, 10, 0x7c00, 0x7e00>(value));
#endif
  }
};

struct Float8E4M3 {
  using Codes = ByteVec;
  static constexpr bool kHasFloatsBits = false;
  HPCATTN_INLINE static Codes encode(Vec value) {
    return narrow_to_bytes(encode_narrow<4, 3, 0x7e, 0x7f>(value));
  }
};

struct Float8E5M2 {
  using Codes = ByteVec;
  static constexpr bool kHasFloatsBits = false;
  HPCATTN_INLINE static Codes encode(Vec value) {
    return narrow_to_bytes(encode_narrow<5, 2, 0x7b, 0x7e>(value));
  }
};

template <typename Format>
inline constexpr std::int64_t kCodeBytes = sizeof(typename Format::Codes) / kLanes;

}  // namespace hpcattn::cpu::HPCATTN_ISA
