// SPDX-License-Identifier: Apache-2.0
// Entry of rope_norm_store_kv's kernel for 16-bit rows in aligned pieces: a warp to some rows, the
// first of them on their way before their token is looked up.
#pragma once

#include "kernels/fused/rope_pairs/row.h"
#include "kernels/ptx/dependent.h"

namespace hpcattn {

/// What becomes of this lane's row; bits.
enum PairsWork : unsigned {
  kNoWork = 0,
  kStored = 1,
  kCleared = 2,
  kSomeStored = 4,  // some row of the warp is
  kGivenScale = 8,  // fp8 is stored over a scale that the caller gives
};

/// What the rows of one kind of a group's tokens have in common. The group may have tokens of
/// padding beside live ones.
struct PairsSegment {
  unsigned work = kNoWork;
  PairsTarget target;  // the cache, if the row goes there
};

/// The place in the output of a step's rows.
template <RopePairsSpec kSpec>
inline PairsTarget output_target(const RopePairsParams& p, const PairsStage<kSpec>& stage,
                                 const PairsStep& step) {
  const RowsView& output = p.rope.outputs[step.kind];
  if (output.data == nullptr) return {};
  const std::int32_t stride = p.output_strides[step.kind];
  return {output.row(token_here<kSpec>(p, step), 0) + std::int64_t{stage.head(step)} * stride +
              pieces_here<kSpec>(p).first * size_bytes(output.dtype),
          stride * p.step_heads, output.dtype};
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
          stride * p.step_heads, cache.dtype};
}

/// Whether rows of k or v may go to the cache and to an output; rare.
inline bool has_two_targets(const RopePairsParams& p, int kind) {
  return kind != kQueryRow && p.rope.outputs[kind].data != nullptr &&
         p.rope.caches[0].data != nullptr;
}

/// Readies what the rows of `step`, and its neighbours of the same kind and group, have in common.
/// `steps`: of the unit from here on. `new_group`: nothing is known of its tokens.
template <RopePairsSpec kSpec>
inline void begin_segment(const RopePairsParams& p, const PairsStage<kSpec>& stage,
                          const PairsStep& step, std::int32_t steps, bool new_group,
                          PairsSegment& segment, PairTurns& turns) {
  using Kind = TokenPlace::Kind;
  const RopeParams& rope = p.rope;
  const std::int32_t token = token_here<kSpec>(p, step);
  TokenNotes notes;
  TokenLook look;
  turns = {};  // no register holds them meanwhile
  if (!new_group) {
    notes = stage.notes();
  } else if (token < rope.num_tokens) {
    const std::int32_t heads = step.head + steps * p.step_heads;
    const bool stored = step.kind != kQueryRow || heads > rope.num_q_heads;
    look = look_up_token(rope, token, stored);
    notes.kind = look.kind;
    notes.position = position_of(rope, look.positions, pieces_here<kSpec>(p).pair);
  } else {
    notes.kind = look.kind = Kind::kFaulty;  // there is none: nothing is written
  }
  if (step.kind != kValueRow && notes.kind == Kind::kLive) {
    load_turns<kSpec>(rope, rope.weights[step.kind], table_row(rope, notes.position),
                      pieces_here<kSpec>(p), turns);
  }
  if (new_group) {  // its page is looked at when all that does not depend on it is on its way
    const CachePlace place = cache_place(rope, token, look);
    notes.page = static_cast<std::int32_t>(place.page);
    notes.place = static_cast<std::int32_t>(place.place);
    stage.notes() = notes;
  }
  segment.work = kNoWork;
  segment.target = output_target(p, stage, step);  // its dtype: of all lanes of q
  if (notes.kind != Kind::kFaulty) {
    const bool to_output = segment.target.to != nullptr;
    const bool live = notes.kind == Kind::kLive;
    const bool to_cache = live && step.kind != kQueryRow && notes.page >= 0;
    if (to_cache) segment.target = cache_target(p, stage, step, notes);
    segment.work = !live ? kCleared : to_cache || to_output ? kStored : kNoWork;
  }
  if (__any_sync(kWholeWarp, segment.work == kStored)) segment.work |= kSomeStored;
  if (rope.scales[step.kind].data != nullptr) segment.work |= kGivenScale;
}

/// One step's rows. True: the coefficients were given up.
template <RopePairsSpec kSpec>
inline bool run_step(const RopePairsParams& p, const PairsRow<kSpec>& row, float scale,
                     const PairsSegment& segment, PairTurns& turns) {
  const PairsStep& step = row.step;
  if ((segment.work & kCleared) != 0) clear_row(p, segment.target, row);
  if ((segment.work & kSomeStored) == 0) return false;
  const bool own = step.kind == kQueryRow && (segment.work & kGivenScale) == 0;
  LaneTurned lane;
  float factor = 1.0F;
  bool gave_up = false;
  if (step.kind == kValueRow) {
    lane.y = row.numbers();
  } else {
    const bool may_doubt = p.doubtful_shares[step.kind] > 0.0F;
    gave_up = turn_row(p, row, (segment.work & kStored) != 0, may_doubt, turns, lane, factor);
  }
  PairsTarget target = segment.target;
  bool stored = (segment.work & kStored) != 0;
  HPCATTN_NO_UNROLL
  for (bool again = has_two_targets(p, step.kind);; again = false) {
    store_row(p, target, row, stored, lane.y, factor, own, scale);
    if (!again) return gave_up;
    stored &= row.stage.notes().page >= 0;
    target = output_target(p, row.stage, step);
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
  clear_counters(p.rope, std::int64_t{unit} * 32 + threadIdx.x % 32,
                 std::int64_t{p.num_units} * 32);
  PairsSegment segment;
  PairTurns turns;
  bool new_group = true;
  HPCATTN_NO_UNROLL
  for (std::int32_t i = 0; i < steps;) {
    begin_segment(p, stage, step, steps - i, new_group, segment, turns);
    const std::int32_t of_kind =
        (num_heads(p, step.kind) - step.head + p.step_heads - 1) >> p.step_heads_log2;
    std::int32_t end = min(steps, i + of_kind);
    HPCATTN_NO_UNROLL
    for (; i < end;
         ++i, step.head += p.step_heads, segment.target.to += segment.target.step_stride) {
      if (i + kAhead < steps) stage.copy(i + kAhead);  // where the rows before these were
      ptx::cp_async_commit();
      float scale = 1.0F;
      if ((segment.work & kGivenScale) != 0) {
        scale = p.rope.scales[step.kind].at(min(stage.head(step), num_heads(p, step.kind) - 1));
      }
      ptx::cp_async_wait<kAhead>();
      if (run_step(p, PairsRow<kSpec>{stage, i, step}, scale, segment, turns)) end = i + 1;
    }
    new_group = false;
    if (step.head < num_heads(p, step.kind)) continue;
    to_next_kind(p, step);
    new_group = step.kind == kQueryRow;
  }
}

}  // namespace hpcattn
