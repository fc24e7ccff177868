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

/// Which dtypes the products are of: 16-bit ones as they are, or fp8, of contractions twice as
/// long.
template <DecodeSpec kSpec>
struct DecodeMath {
  static constexpr DType kKv = kSpec.attention.kv_dtype;
  static constexpr bool kFp8 = is_fp8(kKv);
  static constexpr DType kCompute = AttentionConfig<kSpec.attention>::kCompute;
  static constexpr int kRowBytes =
      kSpec.attention.head_dim * static_cast<int>(size_bytes(kKv));  // of K, V and the stored q
  static constexpr int kQueryStride = padded_row_bytes(kRowBytes);

  static void mma(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    if constexpr (kFp8) {
      ptx::mma_m16n8k32<kKv>(c, a, b[0], b[1]);
    } else {
      ptx::mma_m16n8k16<kCompute>(c, a, b[0], b[1]);
    }
  }
};

template <DecodeSpec kSpec, int kRowTiles>
struct DecodeProducts {
  using Math = DecodeMath<kSpec>;
  static constexpr DecodeLayout kLayout = decode_layout(kSpec);
  static constexpr int kTiles = kRowTiles;
  static constexpr int kHeadDim = kSpec.attention.head_dim;
  static constexpr int kWarpTokens = kLayout.tile_kv / kAttentionWarps;
  static constexpr int kTokenTiles = kWarpTokens / 16;  // of S^T
  static constexpr int kSteps = Math::kRowBytes / 32;   // of the contraction over dims
  static constexpr int kDimTiles = kHeadDim / 16;       // of O^T
  static constexpr int kBoxBytes = kLayout.box_tokens * Math::kRowBytes;
  static constexpr int kLineBytes = DecodeLayout::kLineBytes;

  using Query = std::uint32_t[kRowTiles][kSteps][2];  // right operand of S^T
  using Scores = float[kRowTiles][kTokenTiles][4];
  using Output = float[kRowTiles][kDimTiles][4];

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

  /// The dim of element `e` of tile `n` of O^T. Of fp8 V, a tile's first eight rows are the even
  /// and its last eight the odd dims: they were transposed as pairs of bytes.
  static int dim_of(int n, int e, int lane) {
    const int row = lane / 4;
    return n * 16 + (Math::kFp8 ? 2 * row + e / 2 : row + e / 2 * 8);
  }

  /// `q`: address of the first row in shared memory, rows kQueryStride bytes apart.
  static void load_query(Query& query, std::uint32_t q, int lane) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int step = 0; step < kSteps; step += 2) {
        std::uint32_t units[4];
        ptx::ldmatrix<4, false>(
            units, q + (r * 8 + lane % 8) * Math::kQueryStride + step * 32 + lane / 8 * 16);
        query[r][step][0] = units[0];
        query[r][step][1] = units[1];
        query[r][step + 1][0] = units[2];
        query[r][step + 1][1] = units[3];
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

  /// scores = K Q^T for this warp's tokens, from `first_token` of the tile on.
  static void keys_query(Scores& scores, const Query& query, std::uint32_t slot, int first_token,
                         int lane) {
    HPCATTN_UNROLL
    for (int j = 0; j < kTokenTiles; ++j) {
      HPCATTN_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        HPCATTN_UNROLL
        for (int e = 0; e < 4; ++e) scores[r][j][e] = 0.0F;
      }
      const Line line(slot, first_token + j * 16 + lane % 16);
      HPCATTN_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t a[4];
        ptx::ldmatrix<4, false>(a, line.unit(2 * step + lane / 16));
        HPCATTN_UNROLL
        for (int r = 0; r < kRowTiles; ++r) Math::mma(scores[r][j], a, query[r][step]);
      }
    }
  }

  /// output += V^T P^T, over the same tokens.
  static void values_probabilities(Output& output, const Scores& probabilities, std::uint32_t slot,
                                   int first_token, int lane) {
    std::uint32_t b[kRowTiles][2];
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) right_operand(b[r], probabilities[r]);
    const auto line = [&](int token) { return Line(slot, first_token + token); };
    if constexpr (Math::kFp8) {
      // Lane l addresses token l: four matrices of eight tokens.
      const Line tokens = line(lane);
      HPCATTN_UNROLL
      for (int tile = 0; tile < kDimTiles; ++tile) {
        // Of dims 2g and 2g + 1, tokens 2t and 2t + 1 of each eight.
        std::uint32_t pairs[4];
        ptx::ldmatrix<4, true>(pairs, tokens.unit(tile));
        const std::uint32_t a[4] = {
            ptx::prmt(pairs[0], pairs[1], 0x6420), ptx::prmt(pairs[0], pairs[1], 0x7531),
            ptx::prmt(pairs[2], pairs[3], 0x6420), ptx::prmt(pairs[2], pairs[3], 0x7531)};
        HPCATTN_UNROLL
        for (int r = 0; r < kRowTiles; ++r) Math::mma(output[r][tile], a, b[r]);
      }
    } else {
      const Line tokens = line(lane / 16 * 8 + lane % 8);
      HPCATTN_UNROLL
      for (int tile = 0; tile < kDimTiles; ++tile) {
        std::uint32_t a[4];
        ptx::ldmatrix<4, true>(a, tokens.unit(2 * tile + lane / 8 % 2));
        HPCATTN_UNROLL
        for (int r = 0; r < kRowTiles; ++r) Math::mma(output[r][tile], a, b[r]);
      }
    }
  }

 private:
  /// P^T of eight rows from what S^T left: tokens go from the rows of a fragment to its lanes. With
  /// fp8, bytes 4t .. 4t + 3 stand for tokens 2t, 2t + 1, 2t + 8 and 2t + 9, as V's do.
  static void right_operand(std::uint32_t (&b)[2], const float (&p)[kTokenTiles][4]) {
    if constexpr (Math::kFp8) {
      HPCATTN_UNROLL
      for (int j = 0; j < 2; ++j) {
        std::uint32_t halves[2];  // of eight tokens each, as float16
        HPCATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
          const float* pair = &p[j][2 * half];
          halves[half] = ptx::transpose_8x8(ptx::pack2<DType::kFloat16>(pair[0], pair[1]));
        }
        b[j] = ptx::float16_to_e4m3(halves[0]) | ptx::float16_to_e4m3(halves[1]) << 16;
      }
    } else {
      HPCATTN_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float* pair = &p[0][2 * half];
        b[half] = ptx::transpose_8x8(ptx::pack2<Math::kCompute>(pair[0], pair[1]));
      }
    }
  }
};

}  // namespace hpcattn
