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

/// The rows of a pass, of which a lane has two of each row tile.
template <AttentionSpec kSpec, int kRowTiles>
class PassRows {
  static constexpr bool kTransformed = kSpec.softcap || kSpec.alibi;
  static constexpr bool kFactorsStay = kRowTiles < 4;  // where there are registers for them

 public:
  int lane;
  int plain_begin;  // what all rows see: [plain_begin, plain_end)
  int plain_end;

  /// `infos`: in shared memory, of `count` rows.
  PassRows(const RowInfo* infos, int count, int lane_of_warp)
      : lane(lane_of_warp),
        // What the last row's window leaves out comes before, what the first row does not see yet
        // after.
        plain_begin(infos[count - 1].kv_begin),
        plain_end(infos[0].kv_end),
        infos_(infos + lane_of_warp % 4 * 2) {
    if constexpr (kFactorsStay) {
      HPCATTN_UNROLL
      for (int i = 0; i < 2 * kRowTiles; ++i) factors_[i / 2][i % 2] = row(i / 2, i % 2).factor;
    }
  }

  const RowInfo& row(int r, int e) const { return infos_[r * 8 + e]; }
  /// Turns scores into log2 units, over 0.
  float factor(int r, int e) const {
    if constexpr (kTransformed) return 1.0F;
    if constexpr (kFactorsStay) return factors_[r][e];
    return row(r, e).factor;
  }

 private:
  const RowInfo* infos_;
  float factors_[kRowTiles][2];
};

/// Soft cap and ALiBi: raw scores become scores in log2 units. `token`: the warp's first.
template <AttentionSpec kSpec, typename Products>
inline void transform_pass(typename Products::Scores& scores,
                           const PassRows<kSpec, Products::kTiles>& rows, int token,
                           float softcap) {
  HPCATTN_UNROLL
  for (int r = 0; r < Products::kTiles; ++r) {
    HPCATTN_UNROLL
    for (int e = 0; e < 2; ++e) {
      const RowInfo row = rows.row(r, e);
      const int first = row.position - token - rows.lane / 4;
      HPCATTN_UNROLL
      for (int half = 0; half < 2 * Products::kTokenTiles; ++half) {
        float& score = scores[r][half / 2][e + half % 2 * 2];
        score = transform_score<kSpec>(score, row, static_cast<float>(first - 8 * half), softcap);
      }
    }
  }
}

/// -inf where a row does not see a token. Bit i of `live_tokens`: the warp's i-th token.
template <typename Products, typename Rows>
inline void mask_pass(typename Products::Scores& scores, const Rows& rows, int token,
                      unsigned live_tokens) {
  const unsigned live = live_tokens >> rows.lane / 4;
  HPCATTN_UNROLL
  for (int r = 0; r < Products::kTiles; ++r) {
    HPCATTN_UNROLL
    for (int e = 0; e < 2; ++e) {
      const RowInfo& row = rows.row(r, e);
      const int begin = row.kv_begin;
      const auto count = static_cast<unsigned>(row.kv_end - begin);
      const int first = token + rows.lane / 4 - begin;
      HPCATTN_UNROLL
      for (int half = 0; half < 2 * Products::kTokenTiles; ++half) {
        float& score = scores[r][half / 2][e + half % 2 * 2];
        // No branch: what a row sees is one comparison of unsigned numbers.
        const bool in_range = static_cast<unsigned>(first + 8 * half) < count;
        const bool seen = in_range & ((live >> (8 * half) & 1U) != 0);
        score = seen ? score : negative_infinity();
      }
    }
  }
}

/// The running softmax of rows that all warps of the cta have tokens of. A row's probabilities are
/// 2^(score + shift), whatever the shift: it follows the largest score only where one would pass it
/// by over 2^kSlack, and only then do the warps have to agree. Probabilities are 2^kBias times too
/// large, in the sums too: as float16 they have fewer small numbers than bfloat16 has.
template <int kRowTiles, int kBias>
struct DecodeSoftmax {
  static constexpr float kSlack = 8.0F;
  static_assert(kSlack + kBias < 16.0F, "float16 holds less than 2^16");
  /// Of a row that has seen nothing: any number exceeds it, and what is not seen stays 0.
  static constexpr float kNoShift = 1e30F;
  float shift[kRowTiles][2];
  float sum[kRowTiles][2];  // of this lane's tokens

  DecodeSoftmax() {
    for_each_row([&](int r, int e) {
      shift[r][e] = kNoShift;
      sum[r][e] = 0.0F;
    });
  }

  /// A score's probability; the sum takes it.
  template <typename Rows>
  float probability(const Rows& rows, int r, int e, float score) {
    const float p = ptx::ex2(fmaf(score, rows.factor(r, e), shift[r][e]));
    sum[r][e] += p;
    return p;
  }

  /// Whether any of this lane's scores is too large for its row's shift.
  template <typename Rows, int kTokenTiles>
  bool exceeded(const float (&scores)[kRowTiles][kTokenTiles][4], const Rows& rows) const {
    bool any = false;
    for_each_row([&](int r, int e) {
      const float top = fmaf(largest(scores, r, e), rows.factor(r, e), shift[r][e]);
      any = any || top > kSlack + static_cast<float>(kBias);
    });
    return any;
  }

  /// Moves the shifts to the largest scores of all warps, where they are too small, by all that
  /// compute: `of_warps` [warps][kStride] is room for these, `sync` their barrier. `rescale` is
  /// what the output so far must be multiplied by.
  template <int kStride, typename Rows, int kTokenTiles, typename Sync>
  void move(const float (&scores)[kRowTiles][kTokenTiles][4], float (&rescale)[kRowTiles][2],
            const Rows& rows, float* of_warps, int warp, const Sync& sync) {
    for_each_row([&](int r, int e) {
      float top = largest(scores, r, e);
      HPCATTN_UNROLL
      for (int step = 4; step <= 16; step *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, step));
      }
      const int row = r * 8 + rows.lane * 2 + e;
      if (rows.lane < 4) of_warps[warp * kStride + row] = top * rows.factor(r, e);
    });
    sync();
    for_each_row([&](int r, int e) {
      const int row = r * 8 + rows.lane % 4 * 2 + e;
      float top = of_warps[row];
      HPCATTN_UNROLL
      for (int w = 1; w < kAttentionWarps; ++w) top = fmaxf(top, of_warps[w * kStride + row]);
      float& kept = shift[r][e];
      const float bias = static_cast<float>(kBias);
      const bool moves = top + kept > kSlack + bias;
      rescale[r][e] = moves ? ptx::ex2(bias - top - kept) : 1.0F;
      sum[r][e] *= rescale[r][e];
      kept = moves ? bias - top : kept;
    });
  }

  /// This warp's sums to `of_warp` [rows]; `references` [rows] are the same with all warps.
  void store(float* of_warp, float* references, int lane) {
    for_each_row([&](int r, int e) {
      HPCATTN_UNROLL
      for (int step = 4; step <= 16; step *= 2) {
        sum[r][e] += __shfl_xor_sync(0xffffffffU, sum[r][e], step);
      }
      if (lane >= 4) return;
      of_warp[r * 8 + lane * 2 + e] = sum[r][e];
      references[r * 8 + lane * 2 + e] =
          shift[r][e] == kNoShift ? negative_infinity() : -shift[r][e];
    });
  }

 private:
  template <typename Body>
  static void for_each_row(const Body& body) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) body(r, e);
    }
  }

  template <int kTokenTiles>
  static float largest(const float (&scores)[kRowTiles][kTokenTiles][4], int r, int e) {
    float top = scores[r][0][e];
    HPCATTN_UNROLL
    for (int half = 1; half < 2 * kTokenTiles; ++half) {
      top = fmaxf(top, scores[r][half / 2][e + half % 2 * 2]);
    }
    return top;
  }
};

}  // namespace hpcattn
