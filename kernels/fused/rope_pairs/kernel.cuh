// SPDX-License-Identifier: Apache-2.0
// Entry of rope_norm_store_kv's kernel for 16-bit rows in aligned pieces: a warp to some rows, the
// first of them on their way before their token is looked up.
#pragma once

#include "kernels/fused/rope_pairs/row.h"
#include "kernels/ptx/dependent.h"

namespace hpcattn {

/// What becomes of the rows of one kind of a token; bits.
enum PairsWork : unsigned {
  kNoWork = 0,
  kTurned = 1,
  kMayDoubt = 2,  // turned pairs that cancel are turned again
  kStored = 4,
  kCleared = 8,
  kTwoTargets = 16,  // the cache and the output
  kInOutput = 32,    // the target is the second
  kGivenScale = 64,
};

struct PairsSegment {
  unsigned work = kNoWork;
  PairsTarget target;
};

/// The place in the output of a step's rows.
template <RopePairsSpec kSpec>
inline PairsTarget output_target(const RopePairsParams& p, const PairsStage<kSpec>& stage,
                                 const PairsStep& step) {
  const RowsView& output = p.rope.outputs[step.kind];
  if (output.data == nullptr) return {};
  const std::int32_t stride = p.output_strides[step.kind];
  return {output.row(step.token, 0) + std::int64_t{stage.head(step)} * stride +
              pieces_here<kSpec>(p).first * size_bytes(output.dtype),
          stride * pairs_teams(kSpec.lanes), output.dtype};
}

/// The place in the cache of a step's rows of k or v.
template <RopePairsSpec kSpec>
inline PairsTarget cache_target(const RopePairsParams& p, const PairsStage<kSpec>& stage,
                                const PairsStep& step, const TokenNotes& notes) {
  const int side = step.kind == kValueRow ? 1 : 0;
  const CacheView& cache = p.rope.caches[side];
  const std::int32_t stride = p.cache_strides[side];
  return {cache.row(notes.page, notes.place, 0) + std::int64_t{stage.head(step)} * stride +
              pieces_here<kSpec>(p).first * size_bytes(cache.dtype),
          stride * pairs_teams(kSpec.lanes), cache.dtype};
}

/// Where rows go to two places: from the first to the second, and back; whether it is the second.
template <RopePairsSpec kSpec>
inline bool other_target(const RopePairsParams& p, const PairsStage<kSpec>& stage,
                         const PairsStep& step, PairsSegment& segment) {
  if ((segment.work & kTwoTargets) == 0) return false;
  segment.work ^= kInOutput;
  const bool second = (segment.work & kInOutput) != 0;
  segment.target =
      second ? output_target(p, stage, step) : cache_target(p, stage, step, stage.notes());
  return second;
}

/// Readies what the rows of `step`, and its neighbours of the same kind and token, have in common.
/// `steps`: of the unit from here on. `new_token`: nothing is known of it.
template <RopePairsSpec kSpec>
inline void begin_segment(const RopePairsParams& p, const PairsStage<kSpec>& stage,
                          const PairsStep& step, std::int32_t steps, bool new_token,
                          PairsSegment& segment, PairTurns& turns) {
  using Kind = TokenPlace::Kind;
  const RopeParams& rope = p.rope;
  const bool is_value = step.kind == kValueRow;
  TokenNotes notes;
  TokenLook look;
  turns = {};  // no register holds them meanwhile
  if (new_token) {
    const std::int32_t heads = step.head + steps * pairs_teams(kSpec.lanes);
    const bool stored = step.kind != kQueryRow || heads > rope.num_q_heads;
    look = look_up_token(rope, step.token, stored);
    notes.kind = look.kind;
    notes.position = position_of(rope, look.positions, pieces_here<kSpec>(p).pair);
  } else {
    notes = stage.notes();
  }
  if (!is_value && notes.kind == Kind::kLive) {
    load_turns<kSpec>(rope, rope.weights[step.kind], table_row(rope, notes.position),
                      pieces_here<kSpec>(p), turns);
  }
  if (new_token) {  // its page is looked at when all that does not depend on it is on its way
    const CachePlace place = cache_place(rope, step.token, look);
    notes.page = static_cast<std::int32_t>(place.page);
    notes.place = static_cast<std::int32_t>(place.place);
    stage.notes() = notes;
  }
  segment.work = kNoWork;
  if (notes.kind == Kind::kFaulty) return;
  segment.target = output_target(p, stage, step);
  if (notes.kind == Kind::kPadding) {
    segment.work = kCleared;
    return;
  }
  const bool to_cache = step.kind != kQueryRow && notes.page >= 0;
  const bool to_output = segment.target.to != nullptr;
  if (to_cache) segment.target = cache_target(p, stage, step, notes);
  if (!to_cache && !to_output) return;
  segment.work = kStored | (to_cache && to_output ? kTwoTargets : 0);
  if (rope.scales[step.kind].data != nullptr) segment.work |= kGivenScale;
  if (!is_value) segment.work |= kTurned | (p.doubtful_shares[step.kind] > 0.0F ? kMayDoubt : 0);
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
    for (; i < end; ++i, step.head += kTeams, segment.target.to += segment.target.step_stride) {
      if (i + kAhead < steps) stage.copy(i + kAhead);  // where the rows before these were
      ptx::cp_async_commit();
      float scale = 0.0F;
      if ((segment.work & kGivenScale) != 0) {
        scale = p.rope.scales[step.kind].at(min(stage.head(step), num_heads(p, step.kind) - 1));
      }
      ptx::cp_async_wait<kAhead>();
      const PairsRow<kSpec> row{stage, i, step};
      if ((segment.work & kStored) == 0) {
        if (segment.work == kCleared) clear_row(p, segment.target, row);
        continue;
      }
      LaneTurned lane;
      float factor = 1.0F;
      if ((segment.work & kTurned) == 0) {
        lane.y = row.numbers();
      } else if (turn_row(p, row, (segment.work & kMayDoubt) != 0, turns, lane, factor)) {
        end = i + 1;  // the coefficients are loaded anew
      }
      HPCATTN_NO_UNROLL
      do {
        const bool own = (segment.work & kGivenScale) == 0;
        store_row(p, segment.target, row, lane.y, factor, own, scale);
      } while (other_target(p, stage, step, segment));
    }
    new_token = false;
    if (step.head < num_heads(p, step.kind)) continue;
    to_next_kind(step);
    new_token = step.kind == kQueryRow;
  }
}

}  // namespace hpcattn
