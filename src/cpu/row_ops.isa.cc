// SPDX-License-Identifier: Apache-2.0
// The row operations as plain loops without branches, which compilers turn into vector code. The
// conversions are those of src/common/float_bits.h with selects in the place of its branches.
#include <cstdint>
#include <cstring>

#include "src/cpu/row_ops.h"

namespace hpcattn::cpu::HPCATTN_ISA {
namespace {

using std::int32_t;
using std::int64_t;
using std::uint16_t;
using std::uint8_t;

constexpr int32_t kFloatInf = 0x7f800000;
constexpr int32_t kFloatMagnitude = 0x7fffffff;

// ---- one number
// ----------------------------------------------------------------------------------

[[gnu::always_inline]] inline float bits_to_float(int32_t bits) {
  return __builtin_bit_cast(float, bits);
}
[[gnu::always_inline]] inline int32_t float_to_bits(float value) {
  return __builtin_bit_cast(int32_t, value);
}

struct Float32Row {
  using Storage = float;
  [[gnu::always_inline]] static float decode(float value) { return value; }
  [[gnu::always_inline]] static float encode(float value) { return value; }
};

struct BFloat16Row {
  using Storage = uint16_t;
  [[gnu::always_inline]] static float decode(uint16_t bits) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
  [[gnu::always_inline]] static uint16_t encode(float value) {
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t quiet_nan = (bits >> 16) | 0x40U;
    const bool is_nan = static_cast<int32_t>(bits & 0x7fffffffU) > kFloatInf;
    return static_cast<uint16_t>(is_nan ? quiet_nan : rounded);
  }
};

/// A format of `kExponentBits` and `kMantissaBits`. `kLimit` is the code of what lies past its
/// largest number, `kNan` that of a NaN.
template <typename StorageType, int kExponentBits, int kMantissaBits, int32_t kLimit, int32_t kNan>
struct NarrowRow {
  using Storage = StorageType;
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kDrop = 23 - kMantissaBits;

  [[gnu::always_inline]] static Storage encode(float value) {
    const int32_t bits = float_to_bits(value);
    const int32_t magnitude = bits & kFloatMagnitude;
    const int32_t sign = static_cast<int32_t>(static_cast<std::uint32_t>(bits) >> 31)
                         << (kBits - 1);
    const int32_t rebased = magnitude - ((127 - kBias) << 23);
    const int32_t normal = (rebased + ((1 << (kDrop - 1)) - 1) + ((rebased >> kDrop) & 1)) >> kDrop;
    // Below the normal numbers: adding 2^23 units of the format leaves whole units, rounded to
    // even.
    constexpr int32_t kMagic = (127 + 24 - kBias - kMantissaBits) << 23;
    const int32_t subnormal =
        float_to_bits(bits_to_float(magnitude) + __builtin_bit_cast(float, kMagic)) - kMagic;
    constexpr int32_t kSmallestNormal = (128 - kBias) << 23;
    int32_t code = magnitude < kSmallestNormal ? subnormal : normal;
    code = code > kLimit ? kLimit : code;
    code = magnitude > kFloatInf ? kNan : code;
    return static_cast<Storage>(sign | code);
  }

  [[gnu::always_inline]] static float decode(Storage code) {
    static_assert(kLimit == ((1 << kExponentBits) - 1) << kMantissaBits,
                  "a format with infinities");
    const int32_t bits = code;
    const int32_t magnitude = bits & ((1 << (kBits - 1)) - 1);
    const int32_t sign = (bits ^ magnitude) << (32 - kBits);
    constexpr int32_t kRebase = (127 - kBias) << 23;
    const int32_t shifted = magnitude << kDrop;
    const int32_t normal = shifted + kRebase;
    // An exponent of 1 adds an implicit one, which the subtraction takes away, exactly.
    constexpr int32_t kOne = kRebase + (1 << 23);
    const int32_t subnormal =
        float_to_bits(bits_to_float(shifted + kOne) - __builtin_bit_cast(float, kOne));
    int32_t result = magnitude < (1 << kMantissaBits) ? subnormal : normal;
    result = magnitude >= kLimit ? normal + kRebase : result;
    return bits_to_float(result | sign);
  }
};

using Float16Row = NarrowRow<uint16_t, 5, 10, 0x7c00, 0x7e00>;
using Float8E4M3Row = NarrowRow<uint8_t, 4, 3, 0x7e, 0x7f>;
using Float8E5M2Row = NarrowRow<uint8_t, 5, 2, 0x7b, 0x7e>;

// ---- one row
// -------------------------------------------------------------------------------------

template <typename Format>
[[gnu::always_inline]] inline void load_as(const void* row, int64_t n, double* __restrict x) {
  const auto* source = static_cast<const typename Format::Storage*>(row);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<double>(Format::decode(source[i]));
}

template <typename Format>
[[gnu::always_inline]] inline void store_as(const double* __restrict x, double factor, int64_t n,
                                            void* __restrict row) {
  auto* target = static_cast<typename Format::Storage*>(row);
  // Through a block of floats: a loop from 8-byte to 1-byte elements vectorises worse than two.
  constexpr int64_t kBlock = 64;
  float block[kBlock];
  int64_t begin = 0;
  for (; begin + kBlock <= n; begin += kBlock) {
    for (int64_t i = 0; i < kBlock; ++i) block[i] = static_cast<float>(x[begin + i] * factor);
    for (int64_t i = 0; i < kBlock; ++i) target[begin + i] = Format::encode(block[i]);
  }
  for (; begin < n; ++begin) target[begin] = Format::encode(static_cast<float>(x[begin] * factor));
}

void load(const void* row, DType dtype, int64_t n, double* x) {
  if (dtype == DType::kBFloat16) return load_as<BFloat16Row>(row, n, x);
  if (dtype == DType::kFloat16) return load_as<Float16Row>(row, n, x);
  load_as<Float32Row>(row, n, x);
}

void store(const double* x, double factor, int64_t n, void* row, DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return store_as<BFloat16Row>(x, factor, n, row);
    case DType::kFloat16: return store_as<Float16Row>(x, factor, n, row);
    case DType::kFloat8E4M3: return store_as<Float8E4M3Row>(x, factor, n, row);
    case DType::kFloat8E5M2: return store_as<Float8E5M2Row>(x, factor, n, row);
    default: return store_as<Float32Row>(x, factor, n, row);
  }
}

/// Eight sums or maxima side by side: one alone would be a chain of dependent instructions.
constexpr int kLanes = 8;
using Lanes [[gnu::vector_size(kLanes * sizeof(double))]] = double;

double sum_squares(const double* x, int64_t n) {
  Lanes sums{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes values;
    std::memcpy(&values, x + i, sizeof(values));
    sums += values * values;
  }
  double total = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) total += sums[lane];
  for (; i < n; ++i) total += x[i] * x[i];
  return total;
}

double max_abs(const double* x, int64_t n) {
  Lanes largest{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes values;
    std::memcpy(&values, x + i, sizeof(values));
    const Lanes magnitudes = values < 0.0 ? -values : values;
    largest = magnitudes > largest ? magnitudes : largest;  // a NaN is never the larger one
  }
  double result = 0.0;
  for (int lane = 0; lane < kLanes; ++lane)
    result = largest[lane] > result ? largest[lane] : result;
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
    .load = load,
    .store = store,
    .sum_squares = sum_squares,
    .max_abs = max_abs,
    .scale = scale,
    .rotate = rotate,
};

}  // namespace hpcattn::cpu::HPCATTN_ISA
