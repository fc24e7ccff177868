// SPDX-License-Identifier: Apache-2.0
// Entry of rope_norm_store_kv's kernel for 16-bit rows in aligned pieces: a warp to some rows of a
// token, the first of them on their way before the token is looked up.
#pragma once

#include "kernels/fused/rope_pairs/row.h"
#include "kernels/ptx/dependent.h"

namespace hpcattn {

/// A row of padding becomes 0.
inline void clear_row(const RopePairsParams& p, const PairsUnit& unit, const PairsRow& row) {
  if (!row.live) return;
  const LanePieces pieces = pieces_here(unit.pieces);
  if (unit.in_output != nullptr) {
    const RowsView& output = p.rope.outputs[unit.kind];
    char* to = unit.in_output + row.head * output.head_stride;
    if (size_bytes(output.dtype) == 1) {
      store_pieces<1>({}, pieces, to);
    } else {
      store_pieces<2>({}, pieces, to);
    }
  }
  if (unit.kind == kQueryRow && p.rope.out_q_scale.data != nullptr && pieces.first == 0) {
    *reinterpret_cast<float*>(p.rope.out_q_scale.row(unit.token, row.head)) = 0.0F;
  }
}

/// A number that is none, or infinite, among the lane's.
template <DType kDType>
inline bool has_infinite(const LaneWords& row) {
  constexpr std::uint32_t kExponent = kDType == DType::kFloat16 ? 0x7c00U : 0x7f80U;
  bool found = false;
  HPCATTN_UNROLL
  for (int i = 0; i < 8; ++i) {
    found |= (row.words[i] & kExponent) == kExponent;
    found |= (row.words[i] >> 16 & kExponent) == kExponent;
  }
  return found;
}

template <RopePairsSpec kSpec>
__device__ void rope_pairs(const RopePairsParams& p) {
  const RopeParams& rope = p.rope;
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x) * kPairsWarps + thread / 32;
  if (index >= p.num_units) return;
  const std::int32_t token = p.units_per_token.divide(index);
  const std::int32_t unit_of_token =
      index - token * static_cast<std::int32_t>(p.units_per_token.divisor);
  const std::int32_t step = unit_of_token * p.unit_steps;
  const std::int32_t end = min(p.num_steps(), step + p.unit_steps);
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();

  extern __shared__ __align__(16) char shared[];
  const int lane = thread & (p.num_lanes - 1);
  PairsUnit unit{.token = token, .pieces = packed(pieces_of<kSpec.interleaved>(rope, lane))};
  PairsStage stage(p, unit, shared, step, end);
  constexpr int kAhead = kStageRows - 1;
  HPCATTN_NO_UNROLL
  for (int i = 0; i < kAhead; ++i) stage.copy();
  const TokenPlace place = place_of_token(rope, token, /*stored=*/end > p.q_steps);
  if (place.kind == TokenPlace::Kind::kFaulty) return;
  const bool padding = place.kind == TokenPlace::Kind::kPadding;
  unit.position = position_of(rope, place.positions, pieces_here(unit.pieces).pair);
  const auto page = static_cast<std::int32_t>(place.cache.page);
  const auto place_in_page = static_cast<std::int32_t>(place.cache.place);
  PairTurns turns;
  HPCATTN_NO_UNROLL
  for (; stage.has_rows(); stage.advance()) {
    stage.copy();  // where the rows before these were
    if (const int kind = kind_of(p, stage.step()); kind != unit.kind) {
      unit.kind = kind;
      unit.in_output = nullptr;
      unit.in_cache = nullptr;
      const RowsView& output = rope.outputs[kind];
      if (output.data != nullptr) unit.in_output = output.row(token, 0);
      if (kind != kQueryRow && page >= 0) {
        const CacheView& cache = rope.caches[kind == kValueRow ? 1 : 0];
        unit.in_cache = cache.row(page, place_in_page, 0);
      }
      if (kind != kValueRow && !padding) load_turns<kSpec>(p, unit, turns);
    }
    ptx::cp_async_wait<kAhead>();
    PairsRow row = stage.rows();
    if (unit.in_output == nullptr && unit.in_cache == nullptr) continue;
    if (padding) {
      clear_row(p, unit, row);
    } else if (unit.kind == kValueRow) {
      store_row_of_pairs<kSpec, false>(p, unit, turns, row, stage);
    } else {
      // A lane that passes its numbers through multiplies partners by 0.
      if (!pieces_here(unit.pieces).turns) row.doubtful = has_infinite<kSpec.dtype>(row.in);
      find_factor<kSpec>(p, turns, row, stage);
      store_row_of_pairs<kSpec, true>(p, unit, turns, row, stage);
    }
  }
}

}  // namespace hpcattn
