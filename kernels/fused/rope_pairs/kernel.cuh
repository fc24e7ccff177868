// SPDX-License-Identifier: Apache-2.0
// Entry of rope_norm_store_kv's kernel for 16-bit rows in aligned pieces: a warp to some rows, the
// first of them on their way before their token is looked up.
#pragma once

#include "kernels/fused/rope_pairs/row.h"
#include "kernels/ptx/dependent.h"

namespace hpcattn {

/// What becomes of the rows of one kind of a token; bits.
enum PairsWork : unsigned { kNoWork = 0, kCleared = 1, kStored = 2, kTurned = 4, kAlsoOutput = 8 };

struct PairsSegment {
  unsigned work = kNoWork;  // kAlsoOutput: the target is the cache, and the output is one too
  PairsTarget target;
};

/// The lane's place in the output of a token's rows.
template <RopePairsSpec kSpec>
inline PairsTarget output_target(const RopePairsParams& p, const PairsStep& step) {
  const RowsView& output = p.rope.outputs[step.kind];
  if (output.data == nullptr) return {};
  const std::int64_t first = pieces_here<kSpec>(p).first * size_bytes(output.dtype);
  return {output.row(step.token, 0) + first, p.output_strides[step.kind], output.dtype};
}

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
    const std::int32_t heads = step.head + steps * pairs_teams(kSpec.lanes);
    const bool stored = step.kind != kQueryRow || heads > rope.num_q_heads;
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
  segment.work = kNoWork;
  if (notes.kind == Kind::kFaulty) return;
  segment.target = output_target<kSpec>(p, step);
  segment.work = notes.kind == Kind::kPadding   ? kCleared
                 : segment.target.to == nullptr ? kNoWork
                                                : kStored;
  if (step.kind != kQueryRow && notes.page >= 0) {
    segment.work = segment.target.to != nullptr ? kStored | kAlsoOutput : kStored;
    const int side = step.kind == kValueRow ? 1 : 0;
    const CacheView& cache = rope.caches[side];
    segment.target = {
        cache.row(notes.page, notes.place, 0) + pieces.first * size_bytes(cache.dtype),
        p.cache_strides[side], cache.dtype};
  }
  if ((segment.work & kStored) != 0 && step.kind != kValueRow) segment.work |= kTurned;
}

template <RopePairsSpec kSpec>
__device__ void rope_pairs(const RopePairsParams& p) {
  const std::int32_t unit = static_cast<std::int32_t>(blockIdx.x) * kPairsWarps +
                            static_cast<std::int32_t>(threadIdx.x) / 32;
  if (unit >= p.num_units) return;
  const std::int32_t steps = p.unit_steps + (unit < p.longer_units ? 1 : 0);
  PairsStep step = pairs_step<kSpec>(p, unit * p.unit_steps + min(unit, p.longer_units));
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
  HPCATTN_NO_UNROLL
  for (std::int32_t i = 0; i < steps;) {
    begin_segment(p, stage, step, steps - i, new_token, segment, turns);
    constexpr int kTeams = pairs_teams(kSpec.lanes);
    const std::int32_t of_kind = (num_heads(p, step.kind) - step.head + kTeams - 1) / kTeams;
    std::int32_t end = min(steps, i + of_kind);
    HPCATTN_NO_UNROLL
    for (; i < end; ++i, step.head += kTeams) {
      if (i + kAhead < steps) stage.copy(i + kAhead);  // where the rows before these were
      ptx::cp_async_commit();
      ptx::cp_async_wait<kAhead>();
      const PairsRow<kSpec> row{stage, i, step};
      if (segment.work == kCleared) {
        clear_row(p, segment.target, row);
      } else if (segment.work != kNoWork) {
        LaneTurned lane;
        float factor = 1.0F;
        if ((segment.work & kTurned) == 0) {
          lane.y = row.numbers();
        } else if (turn_row(p, row, turns, lane, factor)) {
          end = i + 1;  // the coefficients are loaded anew
        }
        HPCATTN_NO_UNROLL
        for (PairsTarget target = segment.target;; target = output_target<kSpec>(p, step)) {
          store_row(p, target, row, lane.y, factor);
          if ((segment.work & kAlsoOutput) == 0 || target.to != segment.target.to) break;
        }
      }
    }
    new_token = false;
    if (step.head < num_heads(p, step.kind)) continue;
    to_next_kind(step);
    new_token = step.kind == kQueryRow;
  }
}

}  // namespace hpcattn
