// SPDX-License-Identifier: Apache-2.0
// What a launch of the kernel for 16-bit rows in aligned pieces passes.
#pragma once

#include <cstdint>

#include "kernels/fused/rope/params.h"
#include "kernels/tile/fast_divide.h"

namespace hpcattn {

/// Rows whose squares leave float32's range are scaled by a power of two, and epsilon by its
/// square.
enum PairsRange : int { kInRange = 0, kTinyRows = 1, kHugeRows = 2 };
inline constexpr float kTinyRowScale = 0x1p96F;
inline constexpr float kHugeRowScale = 0x1p-64F;

/// Rows of q, k or v: RowsView with strides of 32 bits.
struct PairsInput {
  const char* data = nullptr;
  std::int32_t token_stride = 0;  // bytes, as the others
  std::int32_t head_stride = 0;
  std::int32_t step_stride = 0;  // of the heads of a step
};

struct RopePairsParams {
  RopeParams rope;
  PairsInput inputs[3];                 // by RopeRow
  std::int32_t output_strides[3] = {};  // bytes between heads
  std::int32_t cache_strides[2] = {};   // of k, v: likewise
  std::int32_t scale_strides[2] = {};   // of out_q_scale, bytes between tokens and heads
  // A step: a row for each team of a warp, all of one kind, of neighbouring heads of a group of
  // neighbouring tokens; steps of a group are numbered q's, k's, v's. A warp has a unit of
  // neighbouring steps, which may be of several groups.
  std::int32_t group_tokens = 1;
  std::int32_t step_heads = 1;  // of each token: 2^step_heads_log2
  std::int32_t step_heads_log2 = 0;
  std::int32_t q_steps = 0;
  std::int32_t kv_steps = 0;  // k's, or v's
  FastDivide steps_per_group;
  std::int32_t num_units = 0;
  std::int32_t unit_steps = 0;  // of a unit; one more for each of the first `longer_units`
  std::int32_t longer_units = 0;
  float doubtful_shares[2] = {};  // of q, k: by the finest dtype that is stored (turn.h); 0: none
  float eps[3] = {};              // by PairsRange; infinite where too large for it
  float upper_max = 448.0F;
  float inverse_upper_max = 1.0F / 448.0F;
  float inverse_head_dim = 0.0F;

  constexpr std::int32_t num_steps() const { return q_steps + 2 * kv_steps; }
};

}  // namespace hpcattn
