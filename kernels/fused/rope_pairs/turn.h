// SPDX-License-Identifier: Apache-2.0
// A lane's pairs turned in float32, and those found that a rotation nearly cancels: coefficients
// are products of cosines and weights, rounded, and that would show (docs/kernels/rope.md). Plain
// C++, which src/cuda/rope_pairs_test.cc holds against float64.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/fused/rope_pairs/lane.h"

namespace hpcattn {

/// Bits of a format's significand.
constexpr int significand_bits(DType dtype) {
  return dtype == DType::kFloat16      ? 11
         : dtype == DType::kBFloat16   ? 8
         : dtype == DType::kFloat8E4M3 ? 4
                                       : 3;
}

/// A number of which less than this share of a product is left may be off by an ulp of `dtype`.
constexpr float doubtful_share(DType dtype) {
  return 0x1p-22F * static_cast<float>(1 << significand_bits(dtype));
}

/// Before the norm's factor.
struct LaneTurned {
  LaneNumbers y;
  float squares = 0.0F;        // what the norm's mean square is taken of, of this lane
  std::uint32_t doubtful = 0;  // pair j: bit kLanePairs - 1 - j
};

/// kDoubts: finds doubtful pairs. `share`: see doubtful_share().
template <RopePairsSpec kSpec, bool kDoubts>
inline LaneTurned turned(const LaneNumbers& x, const PairTurns& turns, float share) {
  LaneTurned lane;
  float squares[2] = {};
  HPCATTN_UNROLL
  for (int j = 0; j < kLanePairs; ++j) {
    const float a = x.of[place_of_a<kSpec.interleaved>(j)];
    const float b = x.of[place_of_b<kSpec.interleaved>(j)];
    const auto& of_b = kSpec.norm == PairsNorm::kBeforeRope ? turns.of_b : turns.of_a;
    const float from_b = b * turns.of_a[1][j];
    const float from_a = a * of_b[1][j];
    float y_a = fmaf(a, turns.of_a[0][j], -from_b);
    float y_b = fmaf(b, of_b[0][j], from_a);
    const auto is_below = [share](float y, float product) {  // in the sign's bit
      return std::bit_cast<std::uint32_t>(fmaf(fabsf(product), -share, fabsf(y)));
    };
    if constexpr (kDoubts) {
      lane.doubtful = lane.doubtful << 1 | (is_below(y_a, from_b) | is_below(y_b, from_a)) >> 31;
    }
    if constexpr (kSpec.norm != PairsNorm::kNone) {
      constexpr bool kAfter = kSpec.norm == PairsNorm::kAfterRope;
      squares[0] = kAfter ? fmaf(y_a, y_a, squares[0]) : fmaf(a, a, squares[0]);
      squares[1] = kAfter ? fmaf(y_b, y_b, squares[1]) : fmaf(b, b, squares[1]);
    }
    if constexpr (kSpec.norm == PairsNorm::kAfterRope) {
      y_a *= turns.weights[0][j];
      y_b *= turns.weights[1][j];
    }
    lane.y.of[place_of_a<kSpec.interleaved>(j)] = y_a;
    lane.y.of[place_of_b<kSpec.interleaved>(j)] = y_b;
  }
  lane.squares = squares[0] + squares[1];
  return lane;
}

/// a * weight_a * cos - b * weight_b * sin, within some 2^-23 of itself and 2^-45 of the products:
/// what rounding cuts off of each product is kept. (The difference of two products: Kahan;
/// Jeannerod, Louvet and Muller, Further analysis of Kahan's algorithm, 2013.)
inline float careful_difference(float a, float weight_a, float cos, float b, float weight_b,
                                float sin) {
  const float normed_a = a * weight_a;
  const float cut_a = fmaf(a, weight_a, -normed_a);
  const float normed_b = b * weight_b;
  const float cut_b = fmaf(b, weight_b, -normed_b);
  const float from_b = normed_b * sin;
  const float cut = fmaf(cut_b, sin, fmaf(normed_b, sin, -from_b));
  return fmaf(normed_a, cos, -from_b) + fmaf(cut_a, cos, -cut);
}

/// A pair, and what its members are multiplied with.
struct CarefulPair {
  float a;
  float b;
  float weight_a = 1.0F;
  float weight_b = 1.0F;
  float cos = 1.0F;
  float sin = 0.0F;
};

/// Turns a pair so that nothing shows of how it cancels. `turns`: false where it passes through.
template <RopePairsSpec kSpec>
inline CarefulPair turned_carefully(const CarefulPair& x, bool turns) {
  if (!turns) return {.a = x.a * x.weight_a, .b = x.b * x.weight_b};
  constexpr bool kBefore = kSpec.norm == PairsNorm::kBeforeRope;
  const float of_partner_a = kBefore ? x.weight_b : x.weight_a;
  const float of_partner_b = kBefore ? x.weight_a : x.weight_b;
  return {.a = careful_difference(x.a, x.weight_a, x.cos, x.b, of_partner_a, x.sin),
          .b = careful_difference(x.b, x.weight_b, x.cos, x.a, of_partner_b, -x.sin)};
}

/// What the norm's mean square is taken of, of a pair: RoPE turns a^2 + b^2 into that times
/// cos^2 + sin^2.
template <RopePairsSpec kSpec>
inline float squares_to_norm(const CarefulPair& x) {
  const float squares = fmaf(x.a, x.a, x.b * x.b);
  if constexpr (kSpec.norm != PairsNorm::kAfterRope) return squares;
  return squares * fmaf(x.cos, x.cos, x.sin * x.sin);
}

/// 1 / x of a normal number, within 2^-23.
inline float reciprocal(float x) {
#ifdef __CUDACC_RTC__
  const float near = ptx::rcp(x);
#else
  const float near = 1.0F / x;
#endif
  return fmaf(fmaf(-near, x, 1.0F), near, near);
}

/// 1 / sqrt(x), within 2^-23; 0 of 0 and of infinity.
inline float reciprocal_root(float x) {
#ifdef __CUDACC_RTC__
  const float root = ptx::rsqrt(x);
#else
  const float root = 1.0F / std::sqrt(x);
#endif
  if (root == 0.0F || x == 0.0F) return 0.0F;
  return fmaf(0.5F * root, fmaf(-x * root, root, 1.0F), root);
}

inline float largest_of(const LaneNumbers& y) {
  float largest = 0.0F;
  HPCATTN_UNROLL
  for (float number : y.of) largest = fmaxf(largest, fabsf(number));
  return largest;
}

/// The scale of a row of q of which `amax` is the largest magnitude.
inline float own_scale(const RopePairsParams& p, float amax) {
  if (!(amax > 0.0F)) return 1.0F;
  return fminf(fmaxf(amax * p.inverse_upper_max, 0x1p-126F), 0x1.fffffep127F);
}

/// A row's codes: of `numbers` times `factor`, over `scale` where kTo is fp8.
template <DType kTo>
inline LaneWords encoded_over(const LaneNumbers& numbers, float factor, float scale) {
  if constexpr (!is_fp8(kTo)) {
    return encoded<kTo>(numbers, [=](float x) { return x * factor; });
  } else {
    if (scale >= 0x1p-60F && scale <= 0x1p60F) {
      const float multiplier = factor * reciprocal(scale);
      return encoded<kTo>(numbers, [=](float x) { return x * multiplier; });
    }
    const float shift = shift_of_scale(scale);
    const float multiplier = factor * reciprocal(scale * shift);
    return encoded<kTo>(numbers, [=](float x) { return x * shift * multiplier; });
  }
}

}  // namespace hpcattn
