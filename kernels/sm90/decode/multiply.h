// SPDX-License-Identifier: Apache-2.0
// The products of a narrow task, transposed: S^T = K Q^T and O^T = V^T P^T. KV tokens and dims lie
// on the 16 rows of mma.m16n8k16, the task's rows on its 8 columns: groups are padded to 8, not
// to 16. A lane 4 g + t has of S^T and of O^T the columns (rows of the task) 2t and 2t + 1.
// A warp has a quarter of the tile's tokens in S^T and a quarter of the dims in O^T: between the
// two products, P goes through shared memory.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"
#include "kernels/ptx/math.h"
#include "kernels/ptx/memory.h"
#include "kernels/ptx/mma.h"
#include "kernels/sm90/decode/config.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// Products are of 16-bit numbers. FP8 pages are widened to float16, exactly, on their way to the
/// registers: mma.sync of fp8 numbers does the same on Hopper, for both of its operands, and P and
/// q would have to be rounded for it.
template <DecodeSpec kSpec>
struct DecodeMath {
  static constexpr DType kKv = kSpec.attention.kv_dtype;
  static constexpr bool kFp8 = is_fp8(kKv);
  static constexpr DType kCompute =
      kFp8 ? DType::kFloat16 : AttentionConfig<kSpec.attention>::kCompute;
  static constexpr int kRowBytes =
      kSpec.attention.head_dim * static_cast<int>(size_bytes(kKv));  // of K and V
  static constexpr int kQueryStride = padded_row_bytes(kSpec.attention.head_dim * 2);

  static std::uint32_t widen(std::uint32_t bytes) { return ptx::widen2<kKv, kCompute>(bytes); }
};

template <DecodeSpec kSpec, int kRowTiles>
struct DecodeProducts {
  using Math = DecodeMath<kSpec>;
  static constexpr DecodeLayout kLayout = decode_layout(kSpec);
  static constexpr int kTiles = kRowTiles;
  static constexpr int kHeadDim = kSpec.attention.head_dim;
  static constexpr int kWarpTokens = kLayout.tile_kv / kAttentionWarps;
  static constexpr int kTokenTiles = kWarpTokens / 16;  // of S^T
  static constexpr int kWarpDims = kHeadDim / kAttentionWarps;
  static constexpr int kDimTiles = kWarpDims / 16;  // of O^T
  static constexpr int kLineBytes = DecodeLayout::kLineBytes;
  static constexpr int kBoxBytes = kSpec.box_tokens * Math::kRowBytes;
  static constexpr int kQueryStride = Math::kQueryStride;
  static constexpr int kPStride = kLayout.p_stride;

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

  /// The dim of element `e` of tile `n` of this warp's O^T. Of fp8 V, a tile's first eight rows are
  /// the even and its last eight the odd dims: they were transposed as pairs of bytes.
  static int dim_of(int warp, int n, int e, int lane) {
    const int row = lane / 4;
    return warp * kWarpDims + n * 16 + (Math::kFp8 ? 2 * row + e / 2 : row + e / 2 * 8);
  }

  /// Address of a token's line, and what its 16-byte units are swizzled with.
  struct Line {
    std::uint32_t address;
    std::uint32_t swizzle;
    Line(std::uint32_t slot, int token)
        : address(slot + token / kSpec.box_tokens * kBoxBytes +
                  token % kSpec.box_tokens * kLineBytes),
          swizzle(token % 8) {}
    /// 16-byte unit `unit` of the token's row.
    std::uint32_t unit(int unit) const {
      constexpr int kUnits = kLineBytes / 16;
      return address + unit / kUnits * (kSpec.box_tokens * kLineBytes) +
             ((unit % kUnits ^ swizzle) * 16);
    }
  };

  /// scores = K Q^T for this warp's tokens, from `first_token` of the tile on. `q`: address of the
  /// first row in shared memory.
  static void keys_query(Scores& scores, std::uint32_t q, std::uint32_t slot, int first_token,
                         int lane) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int j = 0; j < kTokenTiles; ++j) {
        HPCATTN_UNROLL
        for (int e = 0; e < 4; ++e) scores[r][j][e] = 0.0F;
      }
    }
    q += row_of_lane(lane) * kQueryStride + lane / 8 % 2 * 16;
    HPCATTN_UNROLL
    for (int block = 0; block < kHeadDim / 32; ++block) {
      Operands a[kTokenTiles];
      HPCATTN_UNROLL
      for (int step = 0; step < 2; ++step) {
        HPCATTN_UNROLL
        for (int j = 0; j < kTokenTiles; ++j) {
          load_keys(a[j], slot, first_token + j * 16, block, step, lane);
        }
        HPCATTN_UNROLL
        for (int r = 0; r < kRowTiles; r += 2) {
          std::uint32_t b[4];  // of two row tiles
          ptx::ldmatrix<4, false>(b, q + r * 8 * kQueryStride + (block * 2 + step) * 32);
          HPCATTN_UNROLL
          for (int j = 0; j < kTokenTiles; ++j) multiply(scores, r, j, a[j][step], b);
        }
      }
    }
  }

  /// This warp's part of P to shared memory, rows kPStride bytes apart: tokens go from the rows of
  /// a fragment to neighbouring bytes.
  static void store_probabilities(const Scores& scores, std::uint32_t p, int first_token,
                                  int lane) {
    p += lane / 4 * kPStride + first_token * 2 + lane % 4 * 4;
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int j = 0; j < kTokenTiles; ++j) {
        HPCATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
          const float* pair = &scores[r][j][2 * half];
          ptx::store_shared(p + r * 8 * kPStride + j * 32 + half * 16,
                            ptx::transpose_8x8(ptx::pack2<Math::kCompute>(pair[0], pair[1])));
        }
      }
    }
  }

  /// output += V^T P^T of all of the tile's tokens, for this warp's dims.
  static void values_probabilities(Output& output, std::uint32_t p, std::uint32_t slot, int warp,
                                   int lane) {
    p += row_of_lane(lane) * kPStride + lane / 8 % 2 * 16;
    HPCATTN_UNROLL
    for (int block = 0; block < kLayout.tile_kv / 32; ++block) {
      Operands a[kDimTiles];
      HPCATTN_UNROLL
      for (int step = 0; step < 2; ++step) {
        HPCATTN_UNROLL
        for (int n = 0; n < kDimTiles; ++n) {
          load_values(a[n], slot, block * 32, warp * kDimTiles + n, step, lane);
        }
        HPCATTN_UNROLL
        for (int r = 0; r < kRowTiles; r += 2) {
          std::uint32_t b[4];  // of two row tiles
          ptx::ldmatrix<4, false>(b, p + r * 8 * kPStride + (block * 2 + step) * 32);
          HPCATTN_UNROLL
          for (int n = 0; n < kDimTiles; ++n) multiply(output, r, n, a[n][step], b);
        }
      }
    }
  }

 private:
  /// Left operands of two steps of a contraction. 16-bit ones are loaded for a step, fp8 ones for
  /// both before the first.
  using Operands = std::uint32_t[2][4];

  /// Whose 16 bytes a lane addresses for the right operands of two row tiles: with a single one
  /// there are 16 rows in shared memory too.
  static int row_of_lane(int lane) { return lane / 16 * 8 + lane % 8; }

  /// One step for the row tiles `r` and, where there is one, `r + 1`.
  template <int kTilesOfLeft>
  static void multiply(float (&c)[kRowTiles][kTilesOfLeft][4], int r, int tile,
                       const std::uint32_t (&a)[4], const std::uint32_t (&b)[4]) {
    ptx::mma_m16n8k16<Math::kCompute>(c[r][tile], a, b[0], b[1]);
    if constexpr (kRowTiles > 1) ptx::mma_m16n8k16<Math::kCompute>(c[r + 1][tile], a, b[2], b[3]);
  }

  /// 16 tokens x 32 dims of K. Of fp8 K, a lane's four bytes are neighbouring dims, and q is stored
  /// in their order (kernels/generic/attention/fragments.h).
  static void load_keys(Operands& a, std::uint32_t slot, int token, int block, int step, int lane) {
    const Line line(slot, token + lane % 16);
    if constexpr (!Math::kFp8) {
      ptx::ldmatrix<4, false>(a[step], line.unit(4 * block + 2 * step + lane / 16));
    } else if (step == 0) {
      std::uint32_t bytes[4];
      ptx::ldmatrix<4, false>(bytes, line.unit(2 * block + lane / 16));
      HPCATTN_UNROLL
      for (int i = 0; i < 4; ++i) {
        a[i / 2][i % 2] = Math::widen(bytes[i]);
        a[i / 2][i % 2 + 2] = Math::widen(bytes[i] >> 16);
      }
    }
  }

  /// 16 dims, from 16 * `dim_tile` on, of 32 tokens of V.
  static void load_values(Operands& a, std::uint32_t slot, int token, int dim_tile, int step,
                          int lane) {
    if constexpr (!Math::kFp8) {
      const Line line(slot, token + step * 16 + lane / 16 * 8 + lane % 8);
      ptx::ldmatrix<4, true>(a[step], line.unit(2 * dim_tile + lane / 8 % 2));
    } else if (step == 0) {
      // Lane l addresses token l: of dims 2g and 2g + 1, tokens 2t and 2t + 1 of each eight.
      std::uint32_t pairs[4];
      ptx::ldmatrix<4, true>(pairs, Line(slot, token + lane).unit(dim_tile));
      HPCATTN_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t even = ptx::prmt(pairs[2 * i], pairs[2 * i + 1], 0x6420);
        const std::uint32_t odd = ptx::prmt(pairs[2 * i], pairs[2 * i + 1], 0x7531);
        a[i][0] = Math::widen(even);
        a[i][1] = Math::widen(odd);
        a[i][2] = Math::widen(even >> 16);
        a[i][3] = Math::widen(odd >> 16);
      }
    }
  }
};

}  // namespace hpcattn
