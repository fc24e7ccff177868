// SPDX-License-Identifier: Apache-2.0
// The row operations in vectors of the instruction set. The conversions are those of
// src/common/float_bits.h, with selects in the place of its branches.
#include <cstdint>

#include "src/cpu/attention/formats.h"
#include "src/cpu/attention/simd.h"
#include "src/cpu/row_ops.h"

namespace hpcattn::cpu::HPCATTN_ISA {
namespace {

using std::int64_t;

constexpr int kHalfLanes = kLanes / 2;
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

/// The low byte of each lane, where the rest is 0.
HPCATTN_INLINE ByteVec narrow_to_bytes(UintVec codes) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // GCC takes the lanes one by one otherwise, which makes a row of fp8 twice as slow.
  const auto all = (__m256i)codes;
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
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
  HPCATTN_INLINE static Vec decode(Codes codes) { return codes; }
  HPCATTN_INLINE static Codes encode(Vec value) { return value; }
};

struct BFloat16 {
  using Codes = ShortVec;
  static constexpr bool kHasFloatsBits = false;
  HPCATTN_INLINE static Vec decode(Codes codes) {
    return (Vec)(__builtin_convertvector(codes, UintVec) << 16);
  }
  HPCATTN_INLINE static Codes encode(Vec value) { return float_to_bfloat16(value); }
};

struct Float16 {
  using Codes = ShortVec;
  static constexpr bool kHasFloatsBits = false;
  HPCATTN_INLINE static Vec decode(Codes codes) { return half_to_float(codes); }
  HPCATTN_INLINE static Codes encode(Vec value) {
#if defined(__AVX2__)
    return float_to_half(value);
#else
    return __builtin_convertvector((encode_narrow<5, 10, 0x7c00, 0x7e00>(value)), ShortVec);
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
constexpr int64_t kCodeBytes = sizeof(typename Format::Codes) / kLanes;

template <typename Format>
HPCATTN_INLINE void load_as(const void* row, int64_t n, double* x) {
  const char* from = static_cast<const char*>(row);
  int64_t i = 0;
  const auto decode_to = [](const char* codes, double* to) {
    const Vec values = Format::decode(load_bits<typename Format::Codes>(codes));
    const auto* halves = reinterpret_cast<const char*>(&values);
    const auto low = __builtin_convertvector(load_bits<HalfVec>(halves), DoubleVec);
    const auto high =
        __builtin_convertvector(load_bits<HalfVec>(halves + sizeof(HalfVec)), DoubleVec);
    __builtin_memcpy(to, &low, sizeof(low));
    __builtin_memcpy(to + kHalfLanes, &high, sizeof(high));
  };
  for (; i + kLanes <= n; i += kLanes) decode_to(from + i * kCodeBytes<Format>, x + i);
  if (i == n) return;
  char codes[sizeof(typename Format::Codes)] = {};
  double rest[kLanes];
  __builtin_memcpy(codes, from + i * kCodeBytes<Format>,
                   static_cast<std::size_t>((n - i) * kCodeBytes<Format>));
  decode_to(codes, rest);
  for (int64_t lane = 0; i < n; ++i, ++lane) x[i] = rest[lane];
}

template <typename Format>
HPCATTN_INLINE void store_as(const double* x, double scale, int64_t n, void* row) {
  char* to = static_cast<char*>(row);
  int64_t i = 0;
  const auto to_floats = [scale](const double* from) {
    auto value = load_bits<DoubleVec>(from);
    // A division, since a product with 1 / scale is off by an ulp where the quotient is a tie.
    if constexpr (sizeof(typename Format::Codes) == sizeof(ByteVec)) value /= scale;
    return __builtin_convertvector(Format::kHasFloatsBits ? value : round_to_odd(value), HalfVec);
  };
  const auto encode_of = [to_floats](const double* from) {
    return Format::encode(join(to_floats(from), to_floats(from + kHalfLanes)));
  };
  for (; i + kLanes <= n; i += kLanes) {
    const auto codes = encode_of(x + i);
    __builtin_memcpy(to + i * kCodeBytes<Format>, &codes, sizeof(codes));
  }
  if (i == n) return;
  double rest[kLanes] = {};
  for (int64_t lane = 0; i + lane < n; ++lane) rest[lane] = x[i + lane];
  const auto codes = encode_of(rest);
  __builtin_memcpy(to + i * kCodeBytes<Format>, &codes,
                   static_cast<std::size_t>((n - i) * kCodeBytes<Format>));
}

void load_row_of(const void* row, DType dtype, int64_t n, double* x) {
  if (dtype == DType::kBFloat16) return load_as<BFloat16>(row, n, x);
  if (dtype == DType::kFloat16) return load_as<Float16>(row, n, x);
  load_as<Float32>(row, n, x);
}

void store_row_of(const double* x, double scale, int64_t n, void* row, DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return store_as<BFloat16>(x, scale, n, row);
    case DType::kFloat16: return store_as<Float16>(x, scale, n, row);
    case DType::kFloat8E4M3: return store_as<Float8E4M3>(x, scale, n, row);
    case DType::kFloat8E5M2: return store_as<Float8E5M2>(x, scale, n, row);
    default: return store_as<Float32>(x, scale, n, row);
  }
}

/// Several vectors of sums or maxima side by side: one alone would be a chain of dependent
/// instructions.
constexpr int kChains = 4;

double sum_squares(const double* x, int64_t n) {
  DoubleVec sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains * kHalfLanes <= n; i += kChains * kHalfLanes) {
    for (int chain = 0; chain < kChains; ++chain) {
      const auto values = load_bits<DoubleVec>(x + i + chain * kHalfLanes);
      sums[chain] += values * values;
    }
  }
  const DoubleVec all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0.0;
  for (int lane = 0; lane < kHalfLanes; ++lane) total += all[lane];
  for (; i < n; ++i) total += x[i] * x[i];
  return total;
}

double max_abs(const double* x, int64_t n) {
  DoubleVec largest[kChains] = {};
  int64_t i = 0;
  for (; i + kChains * kHalfLanes <= n; i += kChains * kHalfLanes) {
    for (int chain = 0; chain < kChains; ++chain) {
      const auto values = load_bits<DoubleVec>(x + i + chain * kHalfLanes);
      const DoubleVec magnitudes = values < 0.0 ? -values : values;
      // A NaN is never the larger one.
      largest[chain] = magnitudes > largest[chain] ? magnitudes : largest[chain];
    }
  }
  double result = 0.0;
  for (const DoubleVec& chain : largest) {
    for (int lane = 0; lane < kHalfLanes; ++lane)
      result = chain[lane] > result ? chain[lane] : result;
  }
  for (; i < n; ++i) {
    const double magnitude = x[i] < 0.0 ? -x[i] : x[i];
    result = magnitude > result ? magnitude : result;
  }
  return result;
}

void scale(double* __restrict x, const double* __restrict weight, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= weight[i] * factor;
}

void rotate_halves(double* __restrict first, double* __restrict second,
                   const double* __restrict cos, const double* __restrict sin, int64_t num_pairs) {
  for (int64_t i = 0; i < num_pairs; ++i) {
    const double a = first[i];
    const double b = second[i];
    first[i] = a * cos[i] - b * sin[i];
    second[i] = b * cos[i] + a * sin[i];
  }
}

void rotate_neighbours(double* __restrict x, const double* __restrict cos,
                       const double* __restrict sin, int64_t num_pairs) {
  for (int64_t i = 0; i < num_pairs; ++i) {
    const double a = x[2 * i];
    const double b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

void rotate(double* x, const double* cos, const double* sin, int64_t num_pairs, RopeStyle style) {
  if (style == RopeStyle::kNeox) return rotate_halves(x, x + num_pairs, cos, sin, num_pairs);
  rotate_neighbours(x, cos, sin, num_pairs);
}

}  // namespace

extern const RowOps kRowOps;
const RowOps kRowOps{
    .isa = HPCATTN_ISA_NAME,
    .load = load_row_of,
    .store = store_row_of,
    .sum_squares = sum_squares,
    .max_abs = max_abs,
    .scale = scale,
    .rotate = rotate,
};

}  // namespace hpcattn::cpu::HPCATTN_ISA
