// SPDX-License-Identifier: Apache-2.0
// The products of a warpgroup's 64 rows: S = Q K^T with both operands in shared memory, O += P V
// with P in registers and V as it lies, or of fp8 transposed (transpose.h). They are started here,
// and waited for elsewhere.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"
#include "kernels/ptx/convert.h"
#include "kernels/ptx/math.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90/prefill/config.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// Scores and output lie in a lane's registers as those of the generic kernel's Multiply do; so of
/// fp8 the output's columns are in the order of V's transposition (output_dim in fragments.h).
template <PrefillSpec kSpec>
struct PrefillProducts {
  using Config = AttentionConfig<kSpec.attention>;
  static constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  static constexpr bool kFp8 = is_fp8(kSpec.attention.kv_dtype);
  static constexpr DType kType = kFp8 ? kSpec.attention.kv_dtype : Config::kCompute;
  static constexpr int kRowTiles = 1;
  static constexpr int kTokenTiles = kLayout.tile_kv / 8;
  static constexpr int kDimTiles = Config::kHeadDim / 8;
  static constexpr int kLineBytes = kLayout.line_bytes;
  static constexpr int kStride = 8 * kLineBytes;                       // eight lines
  static constexpr int kSlotLineBytes = kLayout.tile_kv * kLineBytes;  // all tokens of a line
  static constexpr int kStepBytes = 32;  // of the contraction, of each product
  static constexpr int kStepTokens = kFp8 ? 32 : 16;
  // V's dims of one product.
  static constexpr int kDims = Config::kHeadDim % 128 == 0 ? 128 : 64;

  using Scores = float[kRowTiles][kTokenTiles][4];
  using Output = float[kRowTiles][kDimTiles][4];
  using Probabilities = std::uint32_t[kLayout.tile_kv / kStepTokens][4];
  /// Exponentials are rounded to kType: 2^kLift at the least is a row's largest (Softmax). e4m3 has
  /// numbers to 448, and 2^-9 is the spacing of those near 0.
  static constexpr int kLift = kFp8 ? 6 : 0;

  /// Starts scores = q k^T. `q`: address of this warpgroup's first row; `k`: of a slot.
  static void start_scores(Scores& scores, std::uint32_t q, std::uint32_t k) {
    const std::uint64_t left = ptx::swizzled_operand<kLineBytes>(q, kStride, 0);
    const std::uint64_t right = ptx::swizzled_operand<kLineBytes>(k, kStride, 0);
    HPCATTN_UNROLL
    for (int step = 0; step < kLayout.lines * kLineBytes / kStepBytes; ++step) {
      const int line = step * kStepBytes / kLineBytes;
      const int in_line = step * kStepBytes % kLineBytes;
      ptx::wgmma_shared<kType, kLayout.tile_kv>(
          scores[0][0], ptx::further(left, line * kLayout.rows * kLineBytes + in_line),
          ptx::further(right, line * kSlotLineBytes + in_line), step > 0 ? 1 : 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts output += p v. `v`: where V lies as this product takes it.
  static void start_output(Output& output, const Probabilities& p, std::uint32_t v) {
    constexpr int kValueLine = kFp8 ? kLayout.value_line_bytes : kLineBytes;
    const std::uint64_t right =
        ptx::swizzled_operand<kValueLine>(v, 8 * kValueLine, kFp8 ? 0 : kSlotLineBytes);
    HPCATTN_UNROLL
    for (int step = 0; step < kLayout.tile_kv / kStepTokens; ++step) {
      HPCATTN_UNROLL
      for (int dim = 0; dim < Config::kHeadDim; dim += kDims) {
        const int bytes = kFp8 ? dim * kValueLine + step * kStepBytes
                               : dim / 64 * kSlotLineBytes + step * kStepTokens * kLineBytes;
        ptx::wgmma_registers<kType, kDims>(output[0][dim / 8], p[step], ptx::further(right, bytes));
      }
    }
    ptx::wgmma_commit();
  }

  /// Exponentials as the left operand. Of fp8 a register has the tokens of two tiles, which is the
  /// order of V transposed.
  static void pack(Probabilities& p, const Scores& scores) {
    HPCATTN_UNROLL
    for (int step = 0; step < kLayout.tile_kv / kStepTokens; ++step) {
      HPCATTN_UNROLL
      for (int r = 0; r < 4; ++r) {
        const int tile = kFp8 ? 4 * step + r / 2 * 2 : 2 * step + r / 2;
        const float* const pair = &scores[0][tile][r % 2 * 2];
        if constexpr (kFp8) {
          const float* const next = &scores[0][tile + 1][r % 2 * 2];
          p[step][r] = ptx::pack4_fp8<kType>(pair[0], pair[1], next[0], next[1]);
        } else {
          p[step][r] = ptx::pack2<kType>(pair[0], pair[1]);
        }
      }
    }
  }

  template <int kTiles>
  static void keep_order(float (&accumulators)[kRowTiles][kTiles][4]) {
    ptx::wgmma_keep_order<kTiles * 4>(accumulators[0][0]);
  }

  /// Calls visit(dim, x, x_next) for the pairs of neighbouring dims that a lane holds of a row.
  template <typename Visit>
  static void for_each_pair(const float (&row)[kDimTiles][4], int half, int lane,
                            const Visit& visit) {
    for_each_output_pair<kFp8>(row, half, lane, visit);
  }
};

}  // namespace hpcattn
