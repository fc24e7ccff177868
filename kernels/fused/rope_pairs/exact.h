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

/// A member of a pair, turned, normed and over the scale where the target is fp8; rounded to odd.
/// `own`, `partner`: where they are in the row; `sign`: of the sine.
struct ExactMember {
  float x;
  float x_partner;
  std::int32_t own;
  std::int32_t partner;
  std::int32_t pair;  // as the cosines count it; -1: it passes through
  float sign;
};

template <RopePairsSpec kSpec, bool kTurned>
inline float exact_number(const RopeParams& p, const ExactRow& row, const ExactMember& member) {
  constexpr bool kNormed = kTurned && kSpec.norm != PairsNorm::kNone;
  constexpr bool kBefore = kNormed && kSpec.norm == PairsNorm::kBeforeRope;
  constexpr bool kAfter = kNormed && kSpec.norm == PairsNorm::kAfterRope;
  const auto weight_of = [&](std::int32_t element) {
    return load_one(row.weights->data, row.weights->dtype, element);
  };
  const float weight = kNormed ? weight_of(member.own) : 1.0F;
  TwoFloat y = kBefore ? two_product(member.x, weight) : TwoFloat{member.x, 0.0F};
  float plain = y.hi;  // in float32
  if (kTurned && member.pair >= 0) {
    const float cos = load_one(row.table, p.cos_sin_dtype, member.pair);
    const float sin =
        member.sign * load_one(row.table, p.cos_sin_dtype, p.rotary_dim / 2 + member.pair);
    const TwoFloat partner = kBefore ? two_product(member.x_partner, weight_of(member.partner))
                                     : TwoFloat{member.x_partner, 0.0F};
    plain = y.hi * cos + partner.hi * sin;
    y = y * cos + partner * sin;
  }
  if constexpr (kAfter) {
    plain *= weight;
    y = y * weight;
  }
  if constexpr (kNormed) {
    plain *= row.factor.hi;
    y = y * row.factor;
  }
  if (row.divided) {
    plain /= row.scale;
    y = y / row.scale;
  }
  // Infinities have no error term; NaN stays.
  return fabsf(y.hi) <= 0x1.fffffep127F ? round_to_odd(y) : plain;
}

}  // namespace hpcattn
