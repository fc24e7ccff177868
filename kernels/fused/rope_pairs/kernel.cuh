// SPDX-License-Identifier: Apache-2.0
// Entry of rope_norm_store_kv's kernel for 16-bit rows in aligned pieces: a warp to some rows, the
// first of them on their way before their token is looked up.
#pragma once

#include "kernels/fused/rope_pairs/row.h"
#include "kernels/ptx/dependent.h"

namespace hpcattn {

/// Readies what the rows of `step`, and its neighbours of the same kind and token, have in common.
/// `steps`: of the unit from here on. `new_token`: nothing is known of it.
template <RopePairsSpec kSpec>
inline void begin_segment(const RopePairsParams& p, const PairsStage<kSpec>& stage,
                          const PairsStep& step, std::int32_t steps, bool new_token,
                          PairsSegment& segment, PairTurns& turns) {
  using Kind = TokenPlace::Kind;
  const RopeParams& rope = p.rope;
  const LanePieces pieces = pieces_here<kSpec>(p);
  TokenNotes notes;
  TokenLook look;
  turns = {};  // no register holds them meanwhile
  if (new_token) {
    const std::int32_t q_steps_done = step.head >> (5 - p.lanes_log2);
    const bool stored = step.kind != kQueryRow || q_steps_done + steps > p.q_steps;
    look = look_up_token(rope, step.token, stored);
    notes.kind = look.kind;
    notes.position = position_of(rope, look.positions, pieces.pair);
  } else {
    notes = stage.notes();
  }
  if (step.kind != kValueRow && notes.kind == Kind::kLive) {
    load_turns<kSpec>(rope, rope.weights[step.kind], table_row(rope, notes.position), pieces,
                      turns);
  }
  if (new_token) {  // its page is looked at when all that does not depend on it is on its way
    const CachePlace place = cache_place(rope, step.token, look);
    notes.page = static_cast<std::int32_t>(place.page);
    notes.place = static_cast<std::int32_t>(place.place);
    stage.notes() = notes;
  }
  segment = {.padding = notes.kind == Kind::kPadding};
  if (notes.kind == Kind::kFaulty) return;
  if (const RowsView& output = rope.outputs[step.kind]; output.data != nullptr) {
    segment.in_output = output.row(step.token, 0) + pieces.first * size_bytes(output.dtype);
  }
  if (step.kind != kQueryRow && notes.page >= 0) {
    const CacheView& cache = rope.caches[step.kind == kValueRow ? 1 : 0];
    segment.in_cache =
        cache.row(notes.page, notes.place, 0) + pieces.first * size_bytes(cache.dtype);
  }
}

template <RopePairsSpec kSpec>
__device__ void rope_pairs(const RopePairsParams& p) {
  const std::int32_t unit = static_cast<std::int32_t>(blockIdx.x) * kPairsWarps +
                            static_cast<std::int32_t>(threadIdx.x) / 32;
  if (unit >= p.num_units) return;
  const std::int32_t steps = p.unit_steps + (unit < p.longer_units ? 1 : 0);
  PairsStep step = pairs_step(p, unit * p.unit_steps + min(unit, p.longer_units));
  extern __shared__ __align__(16) char shared[];
  PairsStage<kSpec> stage(p, shared, step);
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();

  constexpr int kAhead = kStageRows - 1;
  HPCATTN_NO_UNROLL
  for (int i = 0; i < kAhead; ++i) {
    if (i < steps) stage.copy(i);
    ptx::cp_async_commit();
  }
  PairsSegment segment;
  PairTurns turns;
  bool new_token = true;
  bool new_kind = true;
  HPCATTN_NO_UNROLL
  for (std::int32_t i = 0; i < steps; ++i) {
    bool turns_spent = false;
    if (i + kAhead < steps) stage.copy(i + kAhead);  // where the rows before these were
    ptx::cp_async_commit();
    if (new_kind) begin_segment(p, stage, step, steps - i, new_token, segment, turns);
    ptx::cp_async_wait<kAhead>();
    if (segment.padding) {
      clear_row<kSpec>(p, segment, step);
    } else if (segment.in_output != nullptr || segment.in_cache != nullptr) {
      const PairsRow<kSpec> row{stage, i, step};
      LaneTurned lane;
      float factor = 1.0F;
      if (step.kind == kValueRow) {
        lane.y = decoded<kSpec.dtype>(row.words());
      } else {
        factor = turn_row(p, row, turns, lane, turns_spent);
      }
      store_row<kSpec>(p, segment, step, lane.y, factor);
    }
    new_kind = advance(p, step);
    new_token = new_kind && step.kind == kQueryRow;
    new_kind |= turns_spent;
  }
}

}  // namespace hpcattn
