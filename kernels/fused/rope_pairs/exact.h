// SPDX-License-Identifier: Apache-2.0
// Pairs whose rounding float32 can not decide, over again in two float32. Seldom run: it reads
// what it needs once more, and keeps nothing in registers for it.
#pragma once

#include <cstdint>

#include "kernels/fused/rope_pairs/lane.h"

namespace hpcattn {

/// Of a row of q or k, or (turned: no) of v.
struct ExactRow {
  const WeightView* weights = nullptr;
  const char* table = nullptr;  // row of cos_sin
  TwoFloat factor{1.0F, 0.0F};  // the norm's
  float scale = 1.0F;           // that an fp8 target is divided by
  bool divided = false;
};

/// Words `at` of 8, without an array in memory.
inline std::uint32_t word_at(const LaneWords& row, int at) {
  std::uint32_t word = 0;
  HPCATTN_UNROLL
  for (int i = 0; i < 8; ++i) word = i == at ? row.words[i] : word;
  return word;
}

/// Element `at` of the 16.
template <DType kDType>
inline float element_at(const LaneWords& row, int at) {
  return decode<kDType>(word_at(row, at / 2) >> (at % 2 * 16) & 0xffffU);
}

/// Where the sum of squares is taken: of one lane.
template <RopePairsSpec kSpec>
inline TwoFloat exact_squares(const RopeParams& p, const LanePieces& pieces, const char* table,
                              const LaneWords& row) {
  TwoFloat sum;
  float cos[kLanePairs];
  float sin[kLanePairs];
  constexpr bool kAfter = kSpec.norm == PairsNorm::kAfterRope;
  if constexpr (kAfter) load_angles(p, table, pieces, cos, sin);
  HPCATTN_UNROLL
  for (int j = 0; j < kLanePairs; ++j) {
    const TwoPairs pairs = pairs_of<kSpec>(row, j / 2);
    // Squares of 11 bits are exact.
    TwoFloat square = two_sum(pairs.a[j % 2] * pairs.a[j % 2], pairs.b[j % 2] * pairs.b[j % 2]);
    if constexpr (kAfter) {
      square = square * (two_product(cos[j], cos[j]) + two_product(sin[j], sin[j]));
    }
    sum = sum + square;
  }
  return sum;
}

/// The norm's factor from the sum of a row's squares.
inline TwoFloat exact_factor(TwoFloat sum, float head_dim, TwoFloat eps) {
  const TwoFloat under_root = sum / head_dim + eps;
  if (under_root.hi == 0.0F) return {};
  return reciprocal_root(under_root);
}

/// One number of a pair: y, over the scale where the target is fp8, rounded to odd. `plain`: y in
/// float32.
template <RopePairsSpec kSpec>
inline float exact_number(const ExactRow& row, TwoFloat y, float weight, float plain) {
  if constexpr (kSpec.norm == PairsNorm::kAfterRope) {
    y = y * weight;
    plain *= weight;
  }
  if constexpr (kSpec.norm != PairsNorm::kNone) {
    y = y * row.factor;
    plain *= row.factor.hi;
  }
  if (row.divided) {
    plain = plain / row.scale;
    y = y / row.scale;
  }
  // Infinities have no error term; NaN stays.
  return fabsf(y.hi) <= 0x1.fffffep127F ? round_to_odd(y) : plain;
}

struct ExactPair {
  float a;
  float b;
};

/// Pair j of the lane.
template <RopePairsSpec kSpec, bool kTurned>
inline ExactPair exact_pair(const RopeParams& p, const ExactRow& row, const LanePieces& pieces,
                            float a, float b, int j) {
  if constexpr (!kTurned) {
    constexpr RopePairsSpec kPlain{.dtype = kSpec.dtype};
    return {exact_number<kPlain>(row, {a, 0.0F}, 1.0F, a),
            exact_number<kPlain>(row, {b, 0.0F}, 1.0F, b)};
  } else {
    float weight_a = 1.0F;
    float weight_b = 1.0F;
    if constexpr (kSpec.norm != PairsNorm::kNone) {
      const WeightView& weights = *row.weights;
      const auto weight_at = [&](std::int32_t element) {
        return load_one(weights.data, weights.dtype, element);
      };
      weight_a = weight_at(element_a<kSpec.interleaved>(pieces, j));
      weight_b = weight_at(element_b<kSpec.interleaved>(pieces, j));
    }
    constexpr bool kBefore = kSpec.norm == PairsNorm::kBeforeRope;
    const TwoFloat from_a = kBefore ? two_product(a, weight_a) : TwoFloat{a, 0.0F};
    const TwoFloat from_b = kBefore ? two_product(b, weight_b) : TwoFloat{b, 0.0F};
    TwoFloat y_a = from_a;
    TwoFloat y_b = from_b;
    float plain_a = kBefore ? a * weight_a : a;
    float plain_b = kBefore ? b * weight_b : b;
    if (pieces.turns) {
      const float cos = load_one(row.table, p.cos_sin_dtype, pieces.pair + j);
      const float sin = load_one(row.table, p.cos_sin_dtype, p.rotary_dim / 2 + pieces.pair + j);
      y_a = from_a * cos + -(from_b * sin);
      y_b = from_b * cos + from_a * sin;
      const float turned_a = plain_a * cos - plain_b * sin;
      plain_b = plain_b * cos + plain_a * sin;
      plain_a = turned_a;
    }
    return {exact_number<kSpec>(row, y_a, weight_a, plain_a),
            exact_number<kSpec>(row, y_b, weight_b, plain_b)};
  }
}

}  // namespace hpcattn
