// SPDX-License-Identifier: Apache-2.0
// A task, as one of the warpgroups that compute sees it: its 64 rows over all tiles of K and V.
#pragma once

#include "kernels/generic/attention/epilogue.h"
#include "kernels/generic/attention/mask.h"
#include "kernels/generic/attention/query.h"
#include "kernels/ptx/memory.h"
#include "kernels/sm90/prefill/multiply.h"
#include "kernels/sm90/prefill/ring.h"
#include "kernels/sm90/prefill/tiles.h"

namespace hpcattn {

/// Named barriers (0 is the cta's): of all that compute, of a warpgroup, and its turn to multiply.
inline constexpr int kComputeBarrier = 1;
inline constexpr int kWarpgroupBarrier = 2;
inline constexpr int kTurnBarrier = 4;

/// The warpgroups start products by turns: while one multiplies, the other takes exponentials.
template <int kWarpgroups>
struct Turn {
  static_assert(kWarpgroups == 1 || kWarpgroups == 2);
  static constexpr int kThreads = kWarpgroups * kWarpgroupThreads;
  int warpgroup;

  /// Once, before the first task: the first one's turn.
  void begin() const {
    if (warpgroup == kWarpgroups - 1) pass();
  }
  void wait() const {
    if constexpr (kWarpgroups > 1) ptx::barrier_sync(kTurnBarrier + warpgroup, kThreads);
  }
  void pass() const {
    if constexpr (kWarpgroups > 1) ptx::barrier_arrive(kTurnBarrier + 1 - warpgroup, kThreads);
  }
};

inline void sync_warpgroup(int warpgroup) {
  ptx::barrier_sync(kWarpgroupBarrier + warpgroup, kWarpgroupThreads);
}

/// What of a tile is live: tokens [begin, end) of it, in those boxes that were copied.
struct LiveTokens {
  int begin;
  int end;
  unsigned boxes;
};

/// Rows of V of tokens that no row sees become zeros: 0 times what lies there may be NaN. Each
/// warpgroup clears them all, before its own product.
template <PrefillSpec kSpec>
inline void clear_dead_values(std::uint32_t slot, const LiveTokens& live, int thread) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  constexpr int kUnits = PrefillLayout::kLineBytes / 16;
  HPCATTN_NO_UNROLL
  for (int i = thread; i < kLayout.tile_kv * kUnits; i += kWarpgroupThreads) {
    const int token = i / kUnits;
    const bool copied = (live.boxes >> token / kLayout.box_tokens & 1U) != 0;
    if (copied && token >= live.begin && token < live.end) continue;
    HPCATTN_NO_UNROLL
    for (int line = 0; line < kLayout.lines; ++line) {
      ptx::clear_shared_16(slot + line * kLayout.tile_kv * PrefillLayout::kLineBytes + i * 16);
    }
  }
  ptx::fence_async_shared();
}

/// Scores of tokens in boxes that were not copied.
template <typename Products>
inline void mask_boxes(typename Products::Scores& scores, unsigned boxes) {
  HPCATTN_UNROLL
  for (int n = 0; n < Products::kTokenTiles; ++n) {
    const bool copied = (boxes >> n * 8 / Products::kLayout.box_tokens & 1U) != 0;
    HPCATTN_UNROLL
    for (int e = 0; e < 4; ++e) {
      scores[0][n][e] = copied ? scores[0][n][e] : negative_infinity();
    }
  }
}

/// One warpgroup and the task at `place`, whose tiles are the ring's items from `item` on.
template <PrefillSpec kSpec>
struct WarpgroupTask {
  static constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  static constexpr AttentionSpec kAttention = kSpec.attention;
  static constexpr int kBoxes = kLayout.tile_kv / kLayout.box_tokens;
  static constexpr unsigned kAllBoxes = (1U << kBoxes) - 1;
  using Products = PrefillProducts<kSpec>;
  using Scores = typename Products::Scores;
  using Output = typename Products::Output;
  using RunningSoftmax = Softmax<1, Products::kTokenTiles>;

  const AttentionParams& p;
  const PrefillShared<kSpec>& shared;
  int warpgroup;
  int place;
  int item;

  static int thread_here() { return ptx::thread_index_here() % kWarpgroupThreads; }
  static int lane_here() { return ptx::thread_index_here() % 32; }
  static int warp_here() { return thread_here() / 32; }

  /// The task's rows that this warpgroup has; none where row_end <= row_begin.
  plan::Task rows_here() const {
    plan::Task task = shared.task(place);
    const int skipped = warpgroup * kWarpgroupRows;
    task.row_begin += skipped;
    task.row_end = min(task.row_begin + kWarpgroupRows, task.row_end);
    if (task.partial >= 0) task.partial += skipped;
    return task;
  }
  RowInfo* infos() const { return shared.infos() + warpgroup * kWarpgroupRows; }
  std::uint32_t q_address() const {
    return shared.q_address(place) + warpgroup * kWarpgroupRows * PrefillLayout::kLineBytes;
  }

  /// Raw scores of a tile that begins at `token` become what the softmax takes.
  void mask(Scores& scores, int token, unsigned boxes, int last_row) const {
    const RowInfo* const rows = infos() + warp_here() * 16 + lane_here() / 4;
    const int column = token + lane_here() % 4 * 2;
    if constexpr (kAttention.softcap || kAttention.alibi) {
      transform_scores<kAttention, Products>(scores, rows, column, p.softcap);
    }
    // What the last row's window leaves out comes before, what the first row does not see yet
    // after.
    const bool plain =
        token >= infos()[last_row].kv_begin && token + kLayout.tile_kv <= infos()[0].kv_end;
    if (!plain) mask_scores<Products>(scores, rows, column);
    if (boxes != kAllBoxes) mask_boxes<Products>(scores, boxes);
  }

  bool update(RunningSoftmax& softmax, const Scores& scores, float (&rescale)[1][2]) const {
    const RowInfo* const rows = infos() + warp_here() * 16 + lane_here() / 4;
    return softmax.update(scores, rescale, [&](int, int half) {
      return kAttention.softcap || kAttention.alibi ? 1.0F : rows[half * 8].factor;
    });
  }

  static void exponentiate(RunningSoftmax& softmax, Scores& scores) {
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kTokenTiles; ++n) softmax.exponentiate(scores, n);
  }

  static void rescale_output(Output& output, const float (&rescale)[1][2]) {
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kDimTiles; ++n) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) output[0][n][e] *= rescale[0][e / 2];
    }
  }

  /// V of a tile is there, and what is dead of it cleared.
  void wait_values(int value_item, int token, unsigned boxes) const {
    shared.slots().wait_full(value_item);
    const plan::Task& task = shared.task(place);
    const LiveTokens live{task.kv_begin - token, task.kv_end - token, boxes};
    if (live.begin <= 0 && live.end >= kLayout.tile_kv && boxes == kAllBoxes) return;
    clear_dead_values<kSpec>(shared.slot_address(value_item), live, thread_here());
    sync_warpgroup(warpgroup);
  }

  void run(const Turn<kLayout.warpgroups>& turn) const {
    Output output;
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kDimTiles; ++n) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) output[0][n][e] = 0.0F;
    }
    RunningSoftmax softmax;
    TileItems<kLayout> tiles(shared.task(place));
    tiles.count = ptx::warp_uniform(tiles.count);
    if (tiles.count > 0) run_tiles(turn, tiles, output, softmax);
    softmax.finish();
    const plan::Task done = rows_here();
    store_rows<Products>(TaskOutput(p, done, kAttention.head_dim), warp_here() * 16, output,
                         softmax);
    if (done.partial >= 0) {
      constexpr int kThreads = kLayout.warpgroups * kWarpgroupThreads;
      join_partials<kAttention.head_dim, kThreads>(
          p, shared.task(place), shared.flag(), warpgroup * kWarpgroupThreads + thread_here(),
          [] { ptx::barrier_sync(kComputeBarrier, kThreads); });
    }
  }

 private:
  void run_tiles(const Turn<kLayout.warpgroups>& turn, const TileItems<kLayout>& tiles,
                 Output& output, RunningSoftmax& softmax) const {
    const auto slots = shared.slots();
    Scores scores;
    typename Products::Probabilities probabilities;
    float rescale[1][2];

    slots.wait_full(item);
    ptx::wgmma_fence();
    Products::start_scores(scores, q_address(), shared.slot_address(item));
    const plan::Task rows = rows_here();
    sync_warpgroup(warpgroup);  // the row infos of the task before were read
    write_row_infos<kAttention, kWarpgroupRows>(p, rows, infos(), thread_here());
    const int last_row = min(max(rows.row_end - rows.row_begin, 1), kWarpgroupRows) - 1;
    sync_warpgroup(warpgroup);
    ptx::wgmma_wait<0>();
    Products::keep_order(scores);
    unsigned boxes = shared.boxes(item);
    slots.release(item, lane_here());
    mask(scores, tiles.token(0), boxes, last_row);
    bool moved = update(softmax, scores, rescale);
    exponentiate(softmax, scores);

    // The products of the turn before are waited for at the start of the next, and not at the end
    // of their own: the compiler moves such a wait to the start of its basic block, which would be
    // before the exponentials.
    const auto end_turn = [&](int tile) {
      ptx::wgmma_wait<0>();
      Products::keep_order(output);
      if (tile > 0) slots.release(item + tiles.value(tile - 1), lane_here());
      if (moved) rescale_output(output, rescale);
      Products::pack(probabilities, scores);
    };
    for (int tile = 1; tile < tiles.count; ++tile) {
      end_turn(tile - 1);
      const int key_item = item + tiles.key(tile);
      const int value_item = item + tiles.value(tile - 1);
      slots.wait_full(key_item);
      turn.wait();
      ptx::wgmma_fence();
      Products::start_scores(scores, q_address(), shared.slot_address(key_item));
      wait_values(value_item, tiles.token(tile - 1), boxes);
      ptx::wgmma_fence();
      Products::start_output(output, probabilities, shared.slot_address(value_item));
      turn.pass();
      ptx::wgmma_wait<1>();
      Products::keep_order(scores);
      boxes = shared.boxes(key_item);
      slots.release(key_item, lane_here());
      mask(scores, tiles.token(tile), boxes, last_row);
      moved = update(softmax, scores, rescale);
      exponentiate(softmax, scores);
    }
    end_turn(tiles.count - 1);

    const int last_item = item + tiles.value(tiles.count - 1);
    wait_values(last_item, tiles.token(tiles.count - 1), boxes);
    ptx::wgmma_fence();
    Products::start_output(output, probabilities, shared.slot_address(last_item));
    ptx::wgmma_wait<0>();
    Products::keep_order(output);
    slots.release(last_item, lane_here());
  }
};

/// All tasks of this cta.
template <PrefillSpec kSpec>
inline void compute_tasks(const AttentionParams& p, const PrefillShared<kSpec>& shared,
                          int warpgroup) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  const auto places = shared.places();
  warpgroup = ptx::warp_uniform(warpgroup);
  const Turn<kLayout.warpgroups> turn{warpgroup};
  turn.begin();
  int item = 0;
  for (int number = 0;; ++number) {
    const int place = number % PrefillLayout::kPlaces;
    places.wait_full(number);
    if (shared.task(place).request == kNoRequest) break;
    WarpgroupTask<kSpec>{p, shared, warpgroup, place, item}.run(turn);
    item = ptx::warp_uniform(item + TileItems<kLayout>(shared.task(place)).items());
    places.release(number, ptx::thread_index_here() % 32);
  }
}

}  // namespace hpcattn
