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

/// The sum of 16 squares of 11 bits or less, which are exact. Added to a sum that is no smaller
/// than each of them, what is cut off is known.
template <RopePairsSpec kSpec>
inline TwoFloat exact_sum_of_squares(const LaneWords& row) {
  const auto each = [&](const auto& body) {
    HPCATTN_UNROLL
    for (int k = 0; k < 4; ++k) {
      const TwoPairs pairs = pairs_of<kSpec>(row, k);
      for (float x : {pairs.a[0], pairs.a[1], pairs.b[0], pairs.b[1]}) body(x);
    }
  };
  float begin = 0.0F;
  each([&](float x) { begin = fmaf(x, x, begin); });
  float sum = begin;
  float cut = 0.0F;
  each([&](float x) {
    const float next = fmaf(x, x, sum);
    cut += fmaf(x, x, sum - next);
    sum = next;
  });
  const TwoFloat total = two_sum(sum, -begin);
  return fast_two_sum(total.hi, total.lo + cut);
}

/// What the norm's mean square is taken of, of one lane.
template <RopePairsSpec kSpec>
inline TwoFloat exact_squares(const RopeParams& p, const LanePieces& pieces, const char* table,
                              const LaneWords& row) {
  if constexpr (kSpec.norm != PairsNorm::kAfterRope) {
    return exact_sum_of_squares<kSpec>(row);
  } else {
    TwoFloat sum;
    float cos[kLanePairs];
    float sin[kLanePairs];
    load_angles(p, table, pieces, cos, sin);
    HPCATTN_UNROLL
    for (int j = 0; j < kLanePairs; ++j) {
      const TwoPairs pairs = pairs_of<kSpec>(row, j / 2);
      const float a = pairs.a[j % 2];
      const float b = pairs.b[j % 2];
      sum =
          sum + two_sum(a * a, b * b) * (two_product(cos[j], cos[j]) + two_product(sin[j], sin[j]));
    }
    return sum;
  }
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
