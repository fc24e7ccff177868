// SPDX-License-Identifier: Apache-2.0
// Scores of a tile in the transposed layout: mask, and the running softmax of the columns that a
// lane has.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"
#include "kernels/generic/attention/scores.h"
#include "kernels/ptx/math.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// Soft cap, ALiBi, scale and mask: raw scores become scores in log2 units, -inf where a row does
/// not see a token. `token`: the warp's first; bit i of `live_tokens`: its i-th.
template <AttentionSpec kSpec, typename Products>
inline void mask_pass(typename Products::Scores& scores, const RowInfo* infos, int token,
                      unsigned live_tokens, int lane, float softcap) {
  HPCATTN_UNROLL
  for (int r = 0; r < Products::kTiles; ++r) {
    HPCATTN_UNROLL
    for (int e = 0; e < 2; ++e) {
      const RowInfo& row = infos[r * 8 + lane % 4 * 2 + e];
      HPCATTN_UNROLL
      for (int half = 0; half < 2 * Products::kTokenTiles; ++half) {
        float& score = scores[r][half / 2][e + half % 2 * 2];
        const int place = lane / 4 + 8 * half;
        if constexpr (kSpec.softcap || kSpec.alibi) {
          score = transform_score<kSpec>(score, row,
                                         static_cast<float>(row.position - token - place), softcap);
        } else {
          score *= row.factor;
        }
        const bool seen = token + place >= row.kv_begin && token + place < row.kv_end &&
                          (live_tokens >> place & 1U) != 0;
        score = seen ? score : negative_infinity();
      }
    }
  }
}

/// As Softmax in scores.h. With fp8, probabilities lie between 2^4 and 2^8 at their largest: e4m3
/// has 448 as its largest number and 2^-9 as its smallest, so 2^13 below the largest are kept.
template <int kRowTiles, bool kFp8>
struct DecodeSoftmax {
  static constexpr float kSlack = 8.0F;
  static constexpr float kLift = kFp8 ? 4.0F : 0.0F;
  float reference[kRowTiles][2];
  float sum[kRowTiles][2];

  DecodeSoftmax() {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        reference[r][e] = negative_infinity();
        sum[r][e] = 0.0F;
      }
    }
  }

  /// Scores in log2 units become probabilities, not normalised; returns whether any lane's
  /// `rescale` is not 1.
  template <int kTokenTiles>
  bool update(float (&scores)[kRowTiles][kTokenTiles][4], float (&rescale)[kRowTiles][2]) {
    bool moved = false;
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        float top = scores[r][0][e];
        HPCATTN_UNROLL
        for (int half = 1; half < 2 * kTokenTiles; ++half) {
          top = fmaxf(top, scores[r][half / 2][e + half % 2 * 2]);
        }
        HPCATTN_UNROLL
        for (int step = 4; step <= 16; step *= 2) {
          top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, step));
        }
        float& kept = reference[r][e];
        const bool moves = top > kept + kSlack;  // true at the first number
        rescale[r][e] = moves ? ptx::ex2(kept - (top - kLift)) : 1.0F;
        kept = moves ? top - kLift : kept;
        sum[r][e] *= rescale[r][e];
        moved = moved || moves;
        const float shift = kept == negative_infinity() ? 0.0F : kept;
        HPCATTN_UNROLL
        for (int half = 0; half < 2 * kTokenTiles; ++half) {
          float& score = scores[r][half / 2][e + half % 2 * 2];
          score = ptx::ex2(score - shift);
          sum[r][e] += score;
        }
      }
    }
    return __any_sync(0xffffffffU, moved);
  }

  /// Adds the tokens of all lanes.
  void finish() {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        HPCATTN_UNROLL
        for (int step = 4; step <= 16; step *= 2) {
          sum[r][e] += __shfl_xor_sync(0xffffffffU, sum[r][e], step);
        }
      }
    }
  }
};

}  // namespace hpcattn
