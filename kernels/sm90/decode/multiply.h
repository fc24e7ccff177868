// SPDX-License-Identifier: Apache-2.0
// The products of a narrow task, transposed: S^T = K Q^T and O^T = V^T P^T. KV tokens and dims lie
// on the 16 rows of mma.m16n8k16, the task's rows on its 8 columns: groups are padded to 8, not
// to 16. A lane 4 g + t has of S^T and of O^T the columns (rows of the task) 2t and 2t + 1.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"
#include "kernels/ptx/math.h"
#include "kernels/ptx/mma.h"
#include "kernels/sm90/decode/config.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

template <DecodeSpec kSpec, int kRowTiles>
struct DecodeProducts {
  using Config = AttentionConfig<kSpec.attention>;
  static constexpr DecodeLayout kLayout = decode_layout(kSpec);
  static constexpr DType kCompute = Config::kCompute;
  static constexpr int kSteps = Config::kHeadDim / 16;     // of the contraction over dims
  static constexpr int kDimTiles = Config::kHeadDim / 16;  // of O^T
  static constexpr int kBoxBytes = kLayout.box_tokens * Config::kHeadDim * Config::kKvBytes;
  static constexpr int kLineBytes = DecodeLayout::kLineBytes;

  using Query = std::uint32_t[kRowTiles][kSteps][2];  // right operand of S^T
  using Scores = float[kRowTiles][4];                 // 16 tokens of this warp
  using Output = float[kRowTiles][kDimTiles][4];

  static constexpr int kTiles = kRowTiles;

  static void clear(Output& output) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int n = 0; n < kDimTiles; ++n) {
        HPCATTN_UNROLL
        for (int e = 0; e < 4; ++e) output[r][n][e] = 0.0F;
      }
    }
  }

  static void rescale(Output& output, const float (&factor)[kRowTiles][2]) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int n = 0; n < kDimTiles; ++n) {
        HPCATTN_UNROLL
        for (int e = 0; e < 4; ++e) output[r][n][e] *= factor[r][e % 2];
      }
    }
  }

  /// `q`: address of the first row in shared memory, rows kQStride bytes apart.
  static void load_query(Query& query, std::uint32_t q, int lane) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int step = 0; step < kSteps; step += 2) {
        std::uint32_t pairs[4];
        ptx::ldmatrix<4, false>(
            pairs, q + (r * 8 + lane % 8) * Config::kQStride + step * 32 + lane / 8 * 16);
        query[r][step][0] = pairs[0];
        query[r][step][1] = pairs[1];
        query[r][step + 1][0] = pairs[2];
        query[r][step + 1][1] = pairs[3];
      }
    }
  }

  /// Address of a token's line, and what its 16-byte units are swizzled with.
  struct Line {
    std::uint32_t address;
    std::uint32_t swizzle;
    Line(std::uint32_t slot, int token)
        : address(slot + token / kLayout.box_tokens * kBoxBytes +
                  token % kLayout.box_tokens * kLineBytes),
          swizzle(token % 8) {}
    /// 16-byte unit `unit` of the token's row.
    std::uint32_t unit(int unit) const {
      constexpr int kUnits = kLineBytes / 16;
      return address + unit / kUnits * (kLayout.box_tokens * kLineBytes) +
             ((unit % kUnits ^ swizzle) * 16);
    }
  };

  /// scores = K Q^T for the 16 tokens from `first_token` of the tile on.
  static void keys_query(Scores& scores, const Query& query, std::uint32_t slot, int first_token,
                         int lane) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) scores[r][e] = 0.0F;
    }
    const Line line(slot, first_token + lane % 16);
    HPCATTN_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t a[4];
      ptx::ldmatrix<4, false>(a, line.unit(2 * step + lane / 16));
      HPCATTN_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        ptx::mma_m16n8k16<kCompute>(scores[r], a, query[r][step][0], query[r][step][1]);
      }
    }
  }

  /// output += V^T P^T, over the same tokens.
  static void values_probabilities(Output& output, const Scores& probabilities, std::uint32_t slot,
                                   int first_token, int lane) {
    std::uint32_t b[kRowTiles][2];
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float* pair = &probabilities[r][2 * half];
        b[r][half] = ptx::transpose_8x8(ptx::pack2<kCompute>(pair[0], pair[1]));
      }
    }
    const Line line(slot, first_token + lane / 16 * 8 + lane % 8);
    HPCATTN_UNROLL
    for (int tile = 0; tile < kDimTiles; ++tile) {
      std::uint32_t a[4];
      ptx::ldmatrix<4, true>(a, line.unit(2 * tile + lane / 8 % 2));
      HPCATTN_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        ptx::mma_m16n8k16<kCompute>(output[r][tile], a, b[r][0], b[r][1]);
      }
    }
  }
};

}  // namespace hpcattn
