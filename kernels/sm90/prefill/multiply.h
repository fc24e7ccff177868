// SPDX-License-Identifier: Apache-2.0
// The products of a warpgroup's 64 rows: S = Q K^T with both operands in shared memory, O += P V
// with P in registers and V as it lies. They are started here, and waited for elsewhere.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"
#include "kernels/ptx/math.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90/prefill/config.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// Scores and output lie in a lane's registers as those of the generic kernel's Multiply do.
template <PrefillSpec kSpec>
struct PrefillProducts {
  using Config = AttentionConfig<kSpec.attention>;
  static constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  static constexpr DType kCompute = Config::kCompute;
  static constexpr int kRowTiles = 1;
  static constexpr int kTokenTiles = kLayout.tile_kv / 8;
  static constexpr int kDimTiles = Config::kHeadDim / 8;
  static constexpr int kLineBytes = PrefillLayout::kLineBytes;
  static constexpr int kStride = 8 * kLineBytes;                       // eight lines
  static constexpr int kSlotLineBytes = kLayout.tile_kv * kLineBytes;  // all tokens of a line
  // V's dims of one product.
  static constexpr int kDims = Config::kHeadDim % 128 == 0 ? 128 : 64;

  using Scores = float[kRowTiles][kTokenTiles][4];
  using Output = float[kRowTiles][kDimTiles][4];
  using Probabilities = std::uint32_t[kTokenTiles / 2][4];  // of 16 tokens each

  /// Starts scores = q k^T. `q`: address of this warpgroup's first row; `k`: of a slot.
  static void start_scores(Scores& scores, std::uint32_t q, std::uint32_t k) {
    const std::uint64_t left = ptx::swizzled_operand(q, kStride, 0);
    const std::uint64_t right = ptx::swizzled_operand(k, kStride, 0);
    HPCATTN_UNROLL
    for (int step = 0; step < Config::kHeadDim / 16; ++step) {
      const int line = step / 4;
      const int in_line = step % 4 * 32;  // bytes
      ptx::wgmma_shared<kCompute, kLayout.tile_kv>(
          scores[0][0], ptx::further(left, line * kLayout.rows * kLineBytes + in_line),
          ptx::further(right, line * kSlotLineBytes + in_line), step > 0 ? 1 : 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts output += p v. `v`: address of a slot.
  static void start_output(Output& output, const Probabilities& p, std::uint32_t v) {
    const std::uint64_t right = ptx::swizzled_operand(v, kStride, kSlotLineBytes);
    HPCATTN_UNROLL
    for (int step = 0; step < kLayout.tile_kv / 16; ++step) {
      HPCATTN_UNROLL
      for (int dim = 0; dim < Config::kHeadDim; dim += kDims) {
        const int bytes = dim / 64 * kSlotLineBytes + step * 16 * kLineBytes;
        ptx::wgmma_registers<kCompute, kDims>(output[0][dim / 8], p[step],
                                              ptx::further(right, bytes));
      }
    }
    ptx::wgmma_commit();
  }

  /// Exponentials as the left operand.
  static void pack(Probabilities& p, const Scores& scores) {
    HPCATTN_UNROLL
    for (int step = 0; step < kTokenTiles / 2; ++step) {
      HPCATTN_UNROLL
      for (int r = 0; r < 4; ++r) {
        const float* const pair = &scores[0][2 * step + r / 2][r % 2 * 2];
        p[step][r] = ptx::pack2<kCompute>(pair[0], pair[1]);
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
    HPCATTN_UNROLL
    for (int n = 0; n < kDimTiles; ++n) {
      visit(output_dim(n, lane % 4 * 2, false), row[n][2 * half], row[n][2 * half + 1]);
    }
  }
};

}  // namespace hpcattn
