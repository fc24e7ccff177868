// SPDX-License-Identifier: Apache-2.0
// The row operations in vectors of the instruction set.
#include <cstdint>

#include "src/cpu/row_formats.h"
#include "src/cpu/row_ops.h"

namespace hpcattn::cpu::HPCATTN_ISA {
namespace {

using std::int64_t;

template <typename Format>
HPCATTN_INLINE void load_as(const void* row, int64_t n, double* x) {
  const char* from = static_cast<const char*>(row);
  const auto load_to = [](const char* codes, double* to) {
    const DoubleVec values = __builtin_convertvector(Format::load(codes), DoubleVec);
    __builtin_memcpy(to, &values, sizeof(values));
  };
  int64_t i = 0;
  for (; i + kHalfLanes <= n; i += kHalfLanes) load_to(from + i * kCodeBytes<Format>, x + i);
  if (i == n) return;
  char codes[sizeof(HalfVec)] = {};
  double rest[kHalfLanes];
  __builtin_memcpy(codes, from + i * kCodeBytes<Format>,
                   static_cast<std::size_t>((n - i) * kCodeBytes<Format>));
  load_to(codes, rest);
  for (int64_t lane = 0; i < n; ++i, ++lane) x[i] = rest[lane];
}

template <typename Format>
HPCATTN_INLINE void store_as(const double* x, double scale, int64_t n, void* row) {
  char* to = static_cast<char*>(row);
  int64_t i = 0;
  const auto to_floats = [=](const double* from) {
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
  double lanes[kHalfLanes];
  __builtin_memcpy(lanes, &all, sizeof(all));
  for (int width = kHalfLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  double total = lanes[0];
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
