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

/// cap * tanh(x), from t = 2 log2(e) x, within some 3e-7 of cap; 1 - 2 / (e^2x + 1) takes no
/// register but x's own, and its infinities are the right ones. The instruction of that name is off
/// by 2^-11.
inline float cap_score(float t, float cap) {
  return fmaf(ptx::rcp(1.0F + ptx::ex2(t)), -2.0F * cap, cap);
}

/// Soft cap and ALiBi: raw scores become scores in log2 units. `distance`: of the KV token from the
/// row's position, in either direction.
template <AttentionSpec kSpec>
inline float transform_score(float raw, const RowInfo& row, float distance, float softcap) {
  float score = raw * row.factor;
  if constexpr (kSpec.softcap) score = cap_score(score, softcap * kLog2E);
  if constexpr (kSpec.alibi) score = fmaf(-row.slope, fabsf(distance), score);
  return score;
}

/// Running softmax of a thread's rows, of which it holds some columns (FlashAttention-2, section
/// 3.1). Exponentials are taken against `reference`, which follows the maximum only when it is more
/// than 2^kSlack behind: rescaling the output is dear, and any reference gives the same quotient.
/// It is then 2^kLift below: the exponentials are at most 2^kSlack, and the row's largest is
/// 2^kLift at least, so that little is lost where they are rounded to a format with few exponents.
template <int kRowTiles, int kTokenTiles, int kLift = 0>
class Softmax {
  static constexpr float kSlack = 8.0F;

 public:
  Softmax() {
    for_each_row([&](int i, int half) {
      reference[i][half] = negative_infinity();
      sum[i][half] = 0.0F;
    });
  }

  /// Takes a tile's scores into account. `factor_of(i, half)` turns a row's scores into log2 units.
  /// `rescale[i][half]` is what the output so far must be multiplied by; returns whether any lane's
  /// is not 1.
  template <typename FactorOf>
  bool update(const float (&scores)[kRowTiles][kTokenTiles][4], float (&rescale)[kRowTiles][2],
              const FactorOf& factor_of) {
    // Rows inside, columns outside: as many independent chains as there are rows.
    float top[kRowTiles][2];
    for_each_row([&](int i, int half) { top[i][half] = scores[i][0][2 * half]; });
    HPCATTN_UNROLL
    for (int n = 0; n < kTokenTiles; ++n) {
      for_each_row([&](int i, int half) {
        const float* pair = &scores[i][n][2 * half];
        top[i][half] = fmaxf(top[i][half], fmaxf(pair[0], pair[1]));
      });
    }
    HPCATTN_UNROLL
    for (int step = 1; step <= 2; step *= 2) {
      for_each_row([&](int i, int half) {
        top[i][half] = fmaxf(top[i][half], __shfl_xor_sync(0xffffffffU, top[i][half], step));
      });
    }
    bool moved = false;
    for_each_row([&](int i, int half) {
      factor[i][half] = factor_of(i, half);
      const float scaled = top[i][half] * factor[i][half];
      float& kept = reference[i][half];
      // True at the first number, since -inf + 8 is -inf.
      const bool moves = scaled > kept + kSlack;
      const float lifted = scaled - static_cast<float>(kLift);
      rescale[i][half] = moves ? ptx::ex2(kept - lifted) : 1.0F;
      kept = moves ? lifted : kept;
      sum[i][half] *= rescale[i][half];
      moved = moved || moves;
    });
    return __any_sync(0xffffffffU, moved);
  }

  /// Scores of token tile `n` become probabilities, not normalised.
  void exponentiate(float (&scores)[kRowTiles][kTokenTiles][4], int n) {
    HPCATTN_UNROLL
    for (int e = 0; e < 2; ++e) {
      for_each_row([&](int i, int half) {
        const float kept = reference[i][half];
        const float shift = kept == negative_infinity() ? 0.0F : -kept;
        float& score = scores[i][n][2 * half + e];
        score = ptx::ex2(fmaf(score, factor[i][half], shift));
        sum[i][half] += score;
      });
    }
  }

  /// Adds the columns of the four lanes of each row.
  void finish() {
    for_each_row([&](int i, int half) {
      sum[i][half] += __shfl_xor_sync(0xffffffffU, sum[i][half], 1);
      sum[i][half] += __shfl_xor_sync(0xffffffffU, sum[i][half], 2);
    });
  }

  float reference[kRowTiles][2];  // log2 units
  float sum[kRowTiles][2];
  float factor[kRowTiles][2];  // of the tile's raw scores

 private:
  template <typename Body>
  static void for_each_row(const Body& body) {
    HPCATTN_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      HPCATTN_UNROLL
      for (int half = 0; half < 2; ++half) body(i, half);
    }
  }
};

}  // namespace hpcattn
