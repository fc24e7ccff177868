// SPDX-License-Identifier: Apache-2.0
// The two products of a tile, Q K^T and P V, by mma of 16-bit numbers. FP8 tiles are widened on
// their way from shared memory to registers. There, the order of a contraction is free as long as
// both sides agree, and so is the place of an output column as long as the epilogue knows it;
// fragments.h has both maps. Of fp8 K, a lane's four bytes are neighbouring dims, and q is stored
// in their order (query.h). Of fp8 V, pairs of dims are transposed as 16-bit elements and then
// taken apart, since no instruction below sm_100 transposes bytes: of each two column tiles one has
// the even, one the odd dims.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"
#include "kernels/ptx/math.h"
#include "kernels/ptx/mma.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

template <AttentionSpec kSpec, TaskShape kShape>
struct Multiply {
  using Config = AttentionConfig<kSpec>;
  static constexpr int kRowTiles = kShape.row_tiles;
  static constexpr int kWarpTokens = kShape.tile_kv / kShape.kv_warps;
  static constexpr int kTokenTiles = kWarpTokens / 8;
  static constexpr int kDimTiles = Config::kHeadDim / 8;
  static constexpr bool kFp8 = is_fp8(kSpec.kv_dtype);

  using Scores = float[kRowTiles][kTokenTiles][4];
  using Output = float[kRowTiles][kDimTiles][4];

  /// scores = q k^T. `q` and `k`: addresses of this warp's first row and first token.
  static void query_keys(Scores& scores, std::uint32_t q, std::uint32_t k, int lane) {
    // Row (lane % 16) and 16-byte half (lane / 16) of a 16 x 16 block of q.
    q += lane % 16 * Config::kQStride + lane / 16 * 16;
    HPCATTN_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      HPCATTN_UNROLL
      for (int n = 0; n < kTokenTiles; ++n) {
        HPCATTN_UNROLL
        for (int e = 0; e < 4; ++e) scores[i][n][e] = 0.0F;
      }
    }
    HPCATTN_UNROLL
    for (int step = 0; step < Config::kHeadDim / 16; ++step) {
      std::uint32_t a[kRowTiles][4];
      HPCATTN_UNROLL
      for (int i = 0; i < kRowTiles; ++i) {
        ptx::ldmatrix<4, false>(a[i], q + i * 16 * Config::kQStride + step * 32);
      }
      HPCATTN_UNROLL
      for (int n = 0; n < kTokenTiles; n += 2) {
        std::uint32_t b[4];  // [2 token tiles][2]
        load_keys(b, k + n * 8 * Config::kKvStride, step, lane);
        HPCATTN_UNROLL
        for (int i = 0; i < kRowTiles; ++i) {
          ptx::mma_m16n8k16<Config::kCompute>(scores[i][n], a[i], b[0], b[1]);
          ptx::mma_m16n8k16<Config::kCompute>(scores[i][n + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  /// output += p v, where p are the exponentials of `scores`: computed step by step, so that the
  /// scheduler has them to put between the products of the step before. `v`: address of this warp's
  /// first token.
  template <typename Softmax>
  static void probabilities_values(Output& output, Scores& scores, Softmax& softmax,
                                   std::uint32_t v, int lane) {
    HPCATTN_UNROLL
    for (int step = 0; step < kWarpTokens / 16; ++step) {
      std::uint32_t a[kRowTiles][4];
      softmax.exponentiate(scores, 2 * step);
      softmax.exponentiate(scores, 2 * step + 1);
      HPCATTN_UNROLL
      for (int i = 0; i < kRowTiles; ++i) {
        HPCATTN_UNROLL
        for (int r = 0; r < 4; ++r) {
          const float* pair = &scores[i][2 * step + r / 2][r % 2 * 2];
          a[i][r] = ptx::pack2<Config::kCompute>(pair[0], pair[1]);
        }
      }
      HPCATTN_UNROLL
      for (int n = 0; n < kDimTiles; n += 2) {
        std::uint32_t b[4];  // [2 column tiles][2]
        load_values(b, v + step * 16 * Config::kKvStride, n / 2, lane);
        HPCATTN_UNROLL
        for (int i = 0; i < kRowTiles; ++i) {
          ptx::mma_m16n8k16<Config::kCompute>(output[i][n], a[i], b[0], b[1]);
          ptx::mma_m16n8k16<Config::kCompute>(output[i][n + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  /// Calls visit(dim, x, x_next) for the pairs of neighbouring dims that a lane holds of a row.
  template <typename Visit>
  static void for_each_pair(const float (&row)[kDimTiles][4], int half, int lane,
                            const Visit& visit) {
    for_each_output_pair<kFp8>(row, half, lane, visit);
  }

 private:
  /// 16 tokens x 16 dims of K as the right operand of two token tiles.
  static void load_keys(std::uint32_t (&b)[4], std::uint32_t k, int step, int lane) {
    if constexpr (kFp8) {
      std::uint32_t bytes[2];
      ptx::ldmatrix<2, false>(bytes, k + lane % 16 * Config::kKvStride + step * 16);
      HPCATTN_UNROLL
      for (int i = 0; i < 2; ++i) {
        ptx::widen4<kSpec.kv_dtype, Config::kCompute>(bytes[i], b[2 * i], b[2 * i + 1]);
      }
    } else {
      const int token = lane / 16 * 8 + lane % 8;
      ptx::ldmatrix<4, false>(b, k + token * Config::kKvStride + step * 32 + lane / 8 % 2 * 16);
    }
  }

  /// 16 tokens x 16 dims of V as the right operand of two column tiles.
  static void load_values(std::uint32_t (&b)[4], std::uint32_t v, int dim_block, int lane) {
    const std::uint32_t row = v + lane % 16 * Config::kKvStride;
    if constexpr (kFp8) {
      std::uint32_t pairs[2];  // tokens 2t, 2t + 1 (and + 8) of dims 2g, 2g + 1
      ptx::ldmatrix<2, true>(pairs, row + dim_block * 16);
      const std::uint32_t even = ptx::prmt(pairs[0], pairs[1], 0x6420);
      const std::uint32_t odd = ptx::prmt(pairs[0], pairs[1], 0x7531);
      ptx::widen4<kSpec.kv_dtype, Config::kCompute>(even, b[0], b[1]);
      ptx::widen4<kSpec.kv_dtype, Config::kCompute>(odd, b[2], b[3]);
    } else {
      ptx::ldmatrix<4, true>(b, row + dim_block * 32 + lane / 16 * 16);
    }
  }
};

}  // namespace hpcattn
