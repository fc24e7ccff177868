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

/// As Softmax in scores.h, of rows that all warps of the cta have tokens of: they agree on the
/// largest score before they take exponentials. Those are 2^kBias times too large, in the sums too:
/// as float16 they have fewer small numbers than bfloat16 has.
template <int kRowTiles, int kBias>
struct DecodeSoftmax {
  static constexpr float kSlack = 8.0F;
  static_assert(kSlack + kBias < 16.0F, "float16 holds less than 2^16");
  float reference[kRowTiles][2];
  float sum[kRowTiles][2];  // of this lane's tokens

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

  /// This warp's largest score of each row to `of_warp` [rows].
  template <int kTokenTiles>
  static void store_maxima(const float (&scores)[kRowTiles][kTokenTiles][4], float* of_warp,
                           int lane) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      float top[2];
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        top[e] = scores[r][0][e];
        HPCATTN_UNROLL
        for (int half = 1; half < 2 * kTokenTiles; ++half) {
          top[e] = fmaxf(top[e], scores[r][half / 2][e + half % 2 * 2]);
        }
        HPCATTN_UNROLL
        for (int step = 4; step <= 16; step *= 2) {
          top[e] = fmaxf(top[e], __shfl_xor_sync(0xffffffffU, top[e], step));
        }
      }
      if (lane < 4)
        *reinterpret_cast<float2*>(of_warp + r * 8 + lane * 2) = make_float2(top[0], top[1]);
    }
  }

  /// Scores in log2 units become probabilities, not normalised. `of_warps` [warps][kStride]: what
  /// all of them have stored. Returns whether any lane's `rescale` is not 1.
  template <int kStride, int kTokenTiles>
  bool update(float (&scores)[kRowTiles][kTokenTiles][4], float (&rescale)[kRowTiles][2],
              const float* of_warps, int lane) {
    bool moved = false;
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      float2 top = make_float2(negative_infinity(), negative_infinity());
      HPCATTN_UNROLL
      for (int w = 0; w < kAttentionWarps; ++w) {
        const auto one =
            *reinterpret_cast<const float2*>(of_warps + w * kStride + r * 8 + lane % 4 * 2);
        top.x = fmaxf(top.x, one.x);
        top.y = fmaxf(top.y, one.y);
      }
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float largest = e == 0 ? top.x : top.y;
        float& kept = reference[r][e];
        const bool moves = largest > kept + kSlack;  // true at the first number
        rescale[r][e] = moves ? ptx::ex2(kept - largest) : 1.0F;
        kept = moves ? largest : kept;
        sum[r][e] *= rescale[r][e];
        moved = moved || moves;
        const float shift = kept == negative_infinity() ? 0.0F : kept - static_cast<float>(kBias);
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

  /// This warp's sums to `of_warp` [rows]; `references` [rows] are the same with all warps.
  void store(float* of_warp, float* references, int lane) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        HPCATTN_UNROLL
        for (int step = 4; step <= 16; step *= 2) {
          sum[r][e] += __shfl_xor_sync(0xffffffffU, sum[r][e], step);
        }
        if (lane >= 4) continue;
        of_warp[r * 8 + lane * 2 + e] = sum[r][e];
        references[r * 8 + lane * 2 + e] = reference[r][e] - static_cast<float>(kBias);
      }
    }
  }
};

}  // namespace hpcattn
