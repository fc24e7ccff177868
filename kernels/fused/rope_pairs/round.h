// SPDX-License-Identifier: Apache-2.0
// A lane's numbers turned and rounded, together with a bound of float32's error: where the two ends
// of that interval round alike, that is the right value rounded once, else the number is in doubt
// (docs/kernels/rope.md).
#pragma once

#include <cstdint>

#include "kernels/fused/rope_pairs/lane.h"

namespace hpcattn {

/// Bounds of float32's error, in parts of 2^-24 with some to spare: of what is proportional to the
/// number itself (the norm's factor, the scale, sums and the ends of the interval) ...
template <RopePairsSpec kSpec, bool kDivided>
inline constexpr float kOfNumber = ((kSpec.norm == PairsNorm::kNone         ? 2.25F
                                     : kSpec.norm == PairsNorm::kBeforeRope ? 11.25F
                                                                            : 13.0F) +
                                    (kDivided ? 4.0F : 0.0F)) *
                                   0x1p-24F;
/// ... and of what is to the products that it is the sum of (coefficients and products).
template <RopePairsSpec kSpec>
inline constexpr float kOfProducts = (kSpec.norm == PairsNorm::kNone ? 1.1F : 2.1F) * 0x1p-24F;

/// Numbers of two pairs before the norm's factor, and the sums of their products' magnitudes.
struct TurnedPairs {
  TwoPairs y;
  TwoPairs products;
};

template <RopePairsSpec kSpec, bool kTurned>
inline TurnedPairs turned_pairs(const LaneWords& row, const PairTurns& turns, int k) {
  const TwoPairs x = pairs_of<kSpec>(row, k);
  if constexpr (!kTurned) return {x, {}};
  TurnedPairs turned;
  HPCATTN_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int j = 2 * k + i;
    const float from_b = x.b[i] * turns.of_a[1][j];
    const float from_a = x.a[i] * turns.of_b[1][j];
    turned.y.a[i] = fmaf(x.a[i], turns.of_a[0][j], -from_b);
    turned.y.b[i] = fmaf(x.b[i], turns.of_b[0][j], from_a);
    turned.products.a[i] = fmaf(fabsf(x.a[i]), fabsf(turns.of_a[0][j]), fabsf(from_b));
    turned.products.b[i] = fmaf(fabsf(x.b[i]), fabsf(turns.of_b[0][j]), fabsf(from_a));
  }
  return turned;
}

/// Codes of the lane's 16 numbers, in the order of its pieces; of fp8 the first four words count.
struct RoundedPairs {
  LaneWords codes;
  std::uint32_t
      unlike[8];  // where the lower (upper) code's bits are not 0, number 2i (2i + 1) is in doubt
};

/// numbers(k): pairs 2k and 2k + 1. `flat`: of the error, where it does not depend on the number;
/// the products' share where kProducts is not.
template <RopePairsSpec kSpec, bool kProducts, DType kTo, typename Numbers>
inline RoundedPairs rounded_pairs(const Numbers& numbers, float factor, float flat) {
  constexpr int kBits = 8 * static_cast<int>(size_bytes(kTo));
  RoundedPairs rounded{};
  HPCATTN_UNROLL
  for (int k = 0; k < 4; ++k) {
    const auto [y, products] = numbers(k);
    const float share = kOfProducts<kSpec> * factor;
    float low[4];
    float high[4];
    HPCATTN_UNROLL
    for (int i = 0; i < 4; ++i) {
      // In the order of the words.
      const bool is_b = kSpec.interleaved ? i % 2 == 1 : i / 2 == 1;
      const int of_pair = kSpec.interleaved ? i / 2 : i % 2;
      const float number = (is_b ? y.b[of_pair] : y.a[of_pair]) * factor;
      float error = flat;
      if constexpr (kProducts) {
        error = (is_b ? products.b[of_pair] : products.a[of_pair]) * share;
      }
      error = fmaf(fabsf(number), kOfNumber<kSpec, is_fp8(kTo)>, error);
      low[i] = number - error;
      high[i] = number + error;
    }
    const std::uint32_t first = encode_pair<kTo>(high[0], high[1]);
    const std::uint32_t second = encode_pair<kTo>(high[2], high[3]);
    const int at_first = first_word<kSpec.interleaved>(k);
    const int at_second = second_word<kSpec.interleaved>(k);
    rounded.unlike[at_first] = first ^ encode_pair<kTo>(low[0], low[1]);
    rounded.unlike[at_second] = second ^ encode_pair<kTo>(low[2], low[3]);
    if constexpr (kBits == 16) {
      rounded.codes.words[at_first] = first;
      rounded.codes.words[at_second] = second;
    } else {
      rounded.codes.words[at_first / 2] |= first << (at_first % 2 * 16);
      rounded.codes.words[at_second / 2] |= second << (at_second % 2 * 16);
    }
  }
  return rounded;
}

/// A row's codes in a target's dtype, and what else became of it.
struct RowCodes {
  LaneWords codes;
  unsigned open = 0;   // numbers in doubt, a bit each
  float scale = 1.0F;  // that an fp8 target was divided by
};

template <DType kTo>
inline void take(const RoundedPairs& rounded, RowCodes& row) {
  row.codes = rounded.codes;
  std::uint32_t any = 0;
  HPCATTN_UNROLL
  for (int i = 0; i < 8; ++i) any |= rounded.unlike[i];
  if (any == 0) return;
  constexpr std::uint32_t kLow = (1U << (8 * size_bytes(kTo))) - 1;
  HPCATTN_UNROLL
  for (int i = 0; i < 8; ++i) {
    if ((rounded.unlike[i] & kLow) != 0) row.open |= 1U << (2 * i);
    if ((rounded.unlike[i] & ~kLow) != 0) row.open |= 2U << (2 * i);
  }
}

}  // namespace hpcattn
