// SPDX-License-Identifier: Apache-2.0
// Vectors of the instruction set that this unit is compiled for, by the compiler's vector
// extensions, with intrinsics where those have no word for it. Included by *.isa.cc alone.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// GCC 12 takes the undefined operand that AVX-512 intrinsics have inside for ours (its bug 105593),
// and the int bounds of our small arrays for a lossy conversion.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif

#include "src/cpu/attention/task.h"

namespace hpcattn::cpu::HPCATTN_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
inline constexpr int kVectorRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
inline constexpr int kVectorRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kLanes = 4;
inline constexpr int kVectorRegisters = 32;
#else
inline constexpr int kLanes = 4;
inline constexpr int kVectorRegisters = 16;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t UintVec __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t ShortVec __attribute__((vector_size(kLanes * 2)));
typedef std::uint8_t ByteVec __attribute__((vector_size(kLanes)));

#define HPCATTN_INLINE __attribute__((always_inline)) inline

template <typename V>
HPCATTN_INLINE V load_bits(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}

HPCATTN_INLINE Vec load(const float* from) { return load_bits<Vec>(from); }
HPCATTN_INLINE IntVec load(const std::int32_t* from) { return load_bits<IntVec>(from); }
HPCATTN_INLINE void store(float* to, Vec value) { __builtin_memcpy(to, &value, sizeof(value)); }
HPCATTN_INLINE Vec broadcast(float value) { return value - Vec{}; }
HPCATTN_INLINE IntVec broadcast(std::int32_t value) { return value - IntVec{}; }

/// 0, 1, 2, ...
HPCATTN_INLINE IntVec lane_index() {
  IntVec index;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index;
}

/// Where a is NaN the result is b, as of the processor's own instruction.
HPCATTN_INLINE Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

HPCATTN_INLINE float max_of_lanes(Vec value) {
  float result = value[0];
#pragma GCC unroll 16
  for (int i = 1; i < kLanes; ++i) result = value[i] > result ? value[i] : result;
  return result;
}

HPCATTN_INLINE float sum_of_lanes(Vec value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)value);
#else
  float result = 0.0F;
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; ++i) result += value[i];
  return result;
#endif
}

/// Stores the sums of the lanes of two or four vectors at to[0], to[1], ...
template <int kCount>
HPCATTN_INLINE void store_sums(float* to, const Vec (&v)[kCount]) {
  static_assert(kCount == 2 || kCount == 4);
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const auto half = [](Vec x) {
    return _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
  };
#else
  const auto half = [](Vec x) { return (__m256)x; };
#endif
  const __m256 low = _mm256_hadd_ps(half(v[0]), half(v[1]));
  const __m256 high = kCount == 4 ? _mm256_hadd_ps(half(v[kCount - 2]), half(v[kCount - 1])) : low;
  const __m256 all = _mm256_hadd_ps(low, high);
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  __builtin_memcpy(to, &sums, kCount * sizeof(float));
#else
  for (int i = 0; i < kCount; ++i) to[i] = sum_of_lanes(v[i]);
#endif
}

/// A cache line that is needed soon, into all caches.
HPCATTN_INLINE void prefetch(const std::byte* line) { __builtin_prefetch(line, 0, 3); }

}  // namespace hpcattn::cpu::HPCATTN_ISA
