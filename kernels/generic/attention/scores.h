// SPDX-License-Identifier: Apache-2.0
// From raw scores to probabilities: scale, soft cap, ALiBi, mask, and the running softmax.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"
#include "kernels/ptx/math.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;
inline float negative_infinity() { return __int_as_float(0xff800000); }

/// tanh within some 1e-7 of the right value. The instruction of that name is off by 2^-11.
inline float tanh_accurate(float x) {
  const float t = ptx::ex2(-2.0F * kLog2E * fabsf(x));
  return copysignf((1.0F - t) * ptx::rcp(1.0F + t), x);
}

/// Soft cap and ALiBi: raw scores become scores in log2 units. `token` is the column's KV token.
template <AttentionSpec kSpec>
inline float transform_score(float raw, const RowInfo& row, int token, float softcap) {
  float score = raw * row.factor;
  if constexpr (kSpec.softcap) score = softcap * kLog2E * tanh_accurate(score);
  if constexpr (kSpec.alibi) {
    score -= row.slope * static_cast<float>(abs(row.position - token));
  }
  return score;
}

/// Running softmax of a thread's rows, of which it holds some columns (FlashAttention-2, section
/// 3.1). Exponentials are taken against `reference`, which follows the maximum only when it is more
/// than 2^kSlack behind: rescaling the output is dear, and any reference gives the same quotient.
template <int kRowTiles, int kTokenTiles>
class Softmax {
  static constexpr float kSlack = 8.0F;

 public:
  Softmax() {
    HPCATTN_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      HPCATTN_UNROLL
      for (int half = 0; half < 2; ++half) {
        reference[i][half] = negative_infinity();
        sum[i][half] = 0.0F;
      }
    }
  }

  /// Scores become probabilities, not normalised. `factor_of(i, half)` turns a row's scores into
  /// log2 units. `rescale[i][half]` is what the output so far must be multiplied by; returns
  /// whether any lane's is not 1.
  template <typename FactorOf>
  bool update(float (&scores)[kRowTiles][kTokenTiles][4], float (&rescale)[kRowTiles][2],
              const FactorOf& factor_of) {
    bool moved = false;
    HPCATTN_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      HPCATTN_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float factor = factor_of(i, half);
        float top = scores[i][0][2 * half];
        HPCATTN_UNROLL
        for (int n = 0; n < kTokenTiles; ++n) {
          top = fmaxf(top, fmaxf(scores[i][n][2 * half], scores[i][n][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
        top *= factor;
        float& kept = reference[i][half];
        rescale[i][half] = 1.0F;
        if (top > kept + kSlack) {  // true at the first number, since -inf + 8 is -inf
          rescale[i][half] = ptx::ex2(kept - top);
          kept = top;
          sum[i][half] *= rescale[i][half];
          moved = true;
        }
        const float shift = kept == negative_infinity() ? 0.0F : -kept;
        HPCATTN_UNROLL
        for (int n = 0; n < kTokenTiles; ++n) {
          HPCATTN_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& score = scores[i][n][2 * half + e];
            score = ptx::ex2(fmaf(score, factor, shift));
            sum[i][half] += score;
          }
        }
      }
    }
    return __any_sync(0xffffffffU, moved);
  }

  /// Adds the columns of the four lanes of each row.
  void finish() {
    HPCATTN_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      HPCATTN_UNROLL
      for (int half = 0; half < 2; ++half) {
        sum[i][half] += __shfl_xor_sync(0xffffffffU, sum[i][half], 1);
        sum[i][half] += __shfl_xor_sync(0xffffffffU, sum[i][half], 2);
      }
    }
  }

  float reference[kRowTiles][2];  // log2 units
  float sum[kRowTiles][2];
};

}  // namespace hpcattn
