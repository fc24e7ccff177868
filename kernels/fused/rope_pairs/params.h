// SPDX-License-Identifier: Apache-2.0
// What a launch of the kernel for 16-bit rows in aligned pieces passes.
#pragma once

#include <cstdint>

#include "kernels/fused/rope/params.h"
#include "kernels/tile/fast_divide.h"
#include "kernels/tile/two_float.h"

namespace hpcattn {

/// Rows whose squares leave float32's range are scaled by a power of two, and epsilon by its
/// square.
enum PairsRange : int { kInRange = 0, kTinyRows = 1, kHugeRows = 2 };
inline constexpr float kTinyRowScale = 0x1p96F;
inline constexpr float kHugeRowScale = 0x1p-64F;

struct RopePairsParams {
  RopeParams rope;
  // A warp has a unit: rows of one kind of a token. Units are numbered by token, then q, k, v.
  FastDivide units_per_token;
  std::int32_t num_units = 0;
  std::int32_t q_units = 0;        // of a token
  std::int32_t kv_units = 0;       // of a token, k's or v's
  std::int32_t rows_per_unit = 0;  // kRowsAhead or less to each of the warp's teams
  TwoFloat eps[3];                 // by PairsRange; infinite where too large for it
  float upper_max = 448.0F;
  float inverse_upper_max = 1.0F / 448.0F;
};

}  // namespace hpcattn
