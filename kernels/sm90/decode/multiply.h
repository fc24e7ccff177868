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
#include "kernels/sm90/decode/slot.h"
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
  static constexpr int kQueryStride = padded_row_bytes(kSpec.attention.head_dim * 2);
};

/// What a warp multiplies in each tile of a pass. All that its lanes' addresses have of themselves
/// is computed once; past that, a tile adds its slot.
template <DecodeSpec kSpec, int kRowTiles>
class DecodeProducts {
  using Math = DecodeMath<kSpec>;
  using Place = SlotPlace<kSpec>;
  static constexpr DecodeLayout kLayout = decode_layout(kSpec);
  static constexpr int kHeadDim = kSpec.attention.head_dim;
  static constexpr int kWarpDims = kHeadDim / kAttentionWarps;
  static constexpr int kPStride = kLayout.p_stride;
  static constexpr int kPBytes = kLayout.p_bytes(kSpec.rows);
  static constexpr int kQueryBlocks = kHeadDim / 32;
  /// As many registers as leave room for the rest; else q is read from shared memory in each tile.
  static constexpr bool kQueryStays = kRowTiles * kHeadDim <= 256;

 public:
  static constexpr int kTiles = kRowTiles;
  static constexpr int kWarpTokens = kLayout.tile_kv / kAttentionWarps;
  static constexpr int kTokenTiles = kWarpTokens / 16;  // of S^T
  static constexpr int kDimTiles = kWarpDims / 16;      // of O^T
  /// Token tiles of K and dim tiles of V in registers at one time; one where there are few left.
  static constexpr int kTokensAtOnce = kRowTiles < 4 ? kTokenTiles : 1;
  static constexpr int kDimsAtOnce = kRowTiles < 4 || kHeadDim < 256 ? kDimTiles : 1;
  using Scores = float[kRowTiles][kTokenTiles][4];
  using Output = float[kRowTiles][kDimTiles][4];

  /// `q`: of the pass's rows, kQueryStride bytes apart, in shared memory already; `p`: room for P.
  DecodeProducts(std::uint32_t q, std::uint32_t p, int warp, int lane)
      : q_(q + of_right(lane, Math::kQueryStride)),
        p_(p + of_right(lane, kPStride)),
        p_store_(p + lane / 4 * kPStride + warp * kWarpTokens * 2 + lane % 4 * 4),
        keys_(Place::of_token(warp * kWarpTokens + lane % 16) +
              Place::of_unit(lane / 16, lane % 16)) {
    const int token = Math::kFp8 ? lane : lane / 16 * 8 + lane % 8;
    HPCATTN_UNROLL
    for (int n = 0; n < kDimTiles; ++n) {
      const int tile = warp * kDimTiles + n;
      const int unit = Math::kFp8 ? tile : 2 * tile + lane / 8 % 2;
      values_[n] = Place::of_token(token) + Place::of_unit(unit, token);
    }
    if constexpr (kQueryStays) {
      HPCATTN_UNROLL
      for (int block = 0; block < kQueryBlocks; ++block) {
        HPCATTN_UNROLL
        for (int step = 0; step < 2; ++step) {
          load_right(query_[block], q_, Math::kQueryStride, block, step);
        }
      }
    }
  }

  static void clear(Output& output) {
    for_each(output, [](float& x, int, int) { x = 0.0F; });
  }
  static void rescale(Output& output, const float (&factor)[kRowTiles][2]) {
    for_each(output, [&](float& x, int r, int e) { x *= factor[r][e % 2]; });
  }

  /// The dim of element `e` of tile `n` of a warp's O^T. Of fp8 V, a tile's first eight rows are
  /// the even and its last eight the odd dims: they were transposed as pairs of bytes.
  static int dim_of(int warp, int n, int e, int lane) {
    const int row = lane / 4;
    return warp * kWarpDims + n * 16 + (Math::kFp8 ? 2 * row + e / 2 : row + e / 2 * 8);
  }

  /// scores = K Q^T for this warp's tokens.
  void keys_query(Scores& scores, std::uint32_t slot) const {
    for_each(scores, [](float& x, int, int) { x = 0.0F; });
    HPCATTN_UNROLL
    for (int first = 0; first < kTokenTiles; first += kTokensAtOnce) {
      HPCATTN_UNROLL
      for (int block = 0; block < kQueryBlocks; ++block) {
        Operands a[kTokensAtOnce];
        HPCATTN_UNROLL
        for (int j = 0; j < kTokensAtOnce; ++j) load_keys(a[j], slot + keys_, block, first + j);
        Right b;
        HPCATTN_UNROLL
        for (int step = 0; step < 2; ++step) {
          if constexpr (kQueryStays) {
            multiply(scores, first, a, query_[block], step);
          } else {
            load_right(b, q_, Math::kQueryStride, block, step);
            multiply(scores, first, a, b, step);
          }
        }
      }
    }
  }

  /// This warp's part of P to shared memory, rows kPStride bytes apart: tokens go from the rows of
  /// a fragment to neighbouring bytes. `of(r, e, score)` makes a probability of a score of the
  /// lane's row e of row tile r. Tiles use two places by turns.
  template <typename Probability>
  void store_probabilities(const Scores& scores, int tile, const Probability& of) const {
    const std::uint32_t p = p_store_ + (tile & 1) * kPBytes;
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int j = 0; j < kTokenTiles; ++j) {
        HPCATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
          const float* pair = &scores[r][j][2 * half];
          const std::uint32_t packed =
              ptx::pack2<Math::kCompute>(of(r, 0, pair[0]), of(r, 1, pair[1]));
          ptx::store_shared(p + r * 8 * kPStride + j * 32 + half * 16, ptx::transpose_8x8(packed));
        }
      }
    }
  }

  /// output += V^T P^T of all of the tile's tokens, for this warp's dims.
  void values_probabilities(Output& output, int tile, std::uint32_t slot) const {
    const std::uint32_t p = p_ + (tile & 1) * kPBytes;
    HPCATTN_UNROLL
    for (int block = 0; block < kLayout.tile_kv / 32; ++block) {
      HPCATTN_UNROLL
      for (int first = 0; first < kDimTiles; first += kDimsAtOnce) {
        Operands a[kDimsAtOnce];
        HPCATTN_UNROLL
        for (int n = 0; n < kDimsAtOnce; ++n) {
          load_values(a[n], slot + values_[first + n] + Place::of_token(block * 32));
        }
        Right b;
        HPCATTN_UNROLL
        for (int step = 0; step < 2; ++step) {
          load_right(b, p, kPStride, block, step);
          multiply(output, first, a, b, step);
        }
      }
    }
  }

 private:
  /// Left operands of the two steps of a block of 32 of the contraction.
  using Operands = std::uint32_t[2][4];
  /// Right operands of each row tile, likewise.
  using Right = std::uint32_t[kRowTiles][2][2];

  template <int kTilesOfLeft, typename Body>
  static void for_each(float (&c)[kRowTiles][kTilesOfLeft][4], const Body& body) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int n = 0; n < kTilesOfLeft; ++n) {
        HPCATTN_UNROLL
        for (int e = 0; e < 4; ++e) body(c[r][n][e], r, e);
      }
    }
  }

  /// Whose 16 bytes a lane addresses for right operands: with one row tile ldmatrix brings both
  /// steps of a block at the first, with more one step of two row tiles.
  static int of_right(int lane, int stride) {
    if constexpr (kRowTiles == 1) return lane % 8 * stride + lane / 8 * 16;
    return (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 16;
  }
  static void load_right(Right& b, std::uint32_t address, int stride, int block, int step) {
    std::uint32_t four[4];
    if constexpr (kRowTiles == 1) {
      if (step > 0) return;
      ptx::ldmatrix<4, false>(four, address + block * 64);
      HPCATTN_UNROLL
      for (int i = 0; i < 4; ++i) b[0][i / 2][i % 2] = four[i];
    } else {
      HPCATTN_UNROLL
      for (int r = 0; r < kRowTiles; r += 2) {
        ptx::ldmatrix<4, false>(four, address + r * 8 * stride + block * 64 + step * 32);
        HPCATTN_UNROLL
        for (int i = 0; i < 4; ++i) b[r + i / 2][step][i % 2] = four[i];
      }
    }
  }

  template <int kTilesOfLeft, int kAtOnce>
  static void multiply(float (&c)[kRowTiles][kTilesOfLeft][4], int first,
                       const Operands (&a)[kAtOnce], const Right& b, int step) {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        ptx::mma_m16n8k16<Math::kCompute>(c[r][first + n], a[n][step], b[r][step][0],
                                          b[r][step][1]);
      }
    }
  }

  /// 16 tokens x 32 dims of K, `keys` of this lane in the slot. Of fp8 K, a lane's four bytes are
  /// neighbouring dims, and q is stored in their order (kernels/generic/attention/fragments.h).
  static void load_keys(Operands& a, std::uint32_t keys, int block, int j) {
    // Units are even but for the lane's own, so that the swizzle's two parts may be taken apart.
    const auto address = [&](int unit) {
      const auto swizzled = static_cast<std::uint32_t>(unit % Place::kUnits * 16);
      return (keys ^ swizzled) + Place::of_line(unit) + Place::of_token(j * 16);
    };
    if constexpr (!Math::kFp8) {
      HPCATTN_UNROLL
      for (int step = 0; step < 2; ++step) {
        ptx::ldmatrix<4, false>(a[step], address(4 * block + 2 * step));
      }
    } else {
      std::uint32_t bytes[4];
      ptx::ldmatrix<4, false>(bytes, address(2 * block));
      HPCATTN_UNROLL
      for (int i = 0; i < 4; ++i) {
        ptx::widen4<Math::kKv, Math::kCompute>(bytes[i], a[i / 2][i % 2], a[i / 2][i % 2 + 2]);
      }
    }
  }

  /// 16 dims of 32 tokens of V, `values` of this lane.
  static void load_values(Operands& a, std::uint32_t values) {
    if constexpr (!Math::kFp8) {
      HPCATTN_UNROLL
      for (int step = 0; step < 2; ++step) {
        ptx::ldmatrix<4, true>(a[step], values + Place::of_token(step * 16));
      }
    } else {
      // Lane l addresses token l: of dims 2g and 2g + 1, tokens 2t and 2t + 1 of each eight.
      std::uint32_t pairs[4];
      ptx::ldmatrix<4, true>(pairs, values);
      HPCATTN_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t even = ptx::prmt(pairs[2 * i], pairs[2 * i + 1], 0x6420);
        const std::uint32_t odd = ptx::prmt(pairs[2 * i], pairs[2 * i + 1], 0x7531);
        ptx::widen4<Math::kKv, Math::kCompute>(even, a[i][0], a[i][2]);
        ptx::widen4<Math::kKv, Math::kCompute>(odd, a[i][1], a[i][3]);
      }
    }
  }

  std::uint32_t q_;
  std::uint32_t p_;
  std::uint32_t p_store_;
  std::uint32_t keys_;
  std::uint32_t values_[kDimTiles];
  Right query_[kQueryStays ? kQueryBlocks : 1];
};

}  // namespace hpcattn
