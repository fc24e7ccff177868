// SPDX-License-Identifier: Apache-2.0
// What one of the warpgroups that compute does: its 64 rows of each task over all tiles of K and V.
#pragma once

#include "kernels/generic/attention/combine.h"
#include "kernels/generic/attention/epilogue.h"
#include "kernels/generic/attention/mask.h"
#include "kernels/generic/attention/query.h"
#include "kernels/sm90/prefill/barriers.h"
#include "kernels/sm90/prefill/dead.h"
#include "kernels/sm90/prefill/multiply.h"
#include "kernels/sm90/prefill/ring.h"
#include "kernels/sm90/prefill/store.h"
#include "kernels/sm90/prefill/tiles.h"

namespace hpcattn {

/// Products and exponentials overlap in a warpgroup, over the ends of tasks too: while P V of a
/// tile is under way, so are the scores of the next one, of the same task or of the next.
template <PrefillSpec kSpec>
class Warpgroup {
 public:
  Warpgroup(const AttentionParams& params, const PrefillShared<kSpec>& parts, int index)
      : p_(params), shared_(parts), warpgroup_(index) {}

  /// All tasks of this cta.
  void run() {
    Task task = find_task(0, 0);
    Scores scores;
    Rows rows;
    bool started = false;  // scores of the task's first tile, and `rows`: they are there
    while (!task.is_end) {
      Output output;
      RunningSoftmax softmax;
      clear(output);
      const Task next = run_tiles(task, started, rows, scores, output, softmax);
      started = !next.is_end && task.tiles.count > 0 && next.tiles.count > 0;
      store(task, output, softmax);
      shared_.queries().release(task.number);
      shared_.records().release(task.number);
      task = next;
    }
  }

 private:
  static constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  static constexpr AttentionSpec kAttention = kSpec.attention;
  static constexpr int kThreads = kLayout.warpgroups * kWarpgroupThreads;
  static constexpr unsigned kAllBoxes = (1U << kLayout.tile_kv / kLayout.box_tokens) - 1;
  static constexpr bool kTransposes = kLayout.transposes;
  using Products = PrefillProducts<kSpec>;
  using Scores = typename Products::Scores;
  using Output = typename Products::Output;
  using RunningSoftmax = Softmax<1, Products::kTokenTiles, Products::kLift>;
  using Tiles = TileItems<kLayout>;

  /// Of this cta's tasks the one of this number, whose tiles are the ring's items from `item` on.
  struct Task {
    int number;
    int item;
    bool is_end;
    Tiles tiles;
    int key(int tile) const { return item + tiles.key(tile); }
    /// V's place in shared_.values(): one of two items of the ring, where it is transposed.
    int value(int tile) const { return kTransposes ? item / 2 + tile : item + tiles.value(tile); }
  };

  /// What this lane has to know of the task's rows: of its two, and of all of its warp.
  struct Rows {
    RowInfo info[2];  // eight rows apart
    int plain_begin;  // what all rows see: [plain_begin, plain_end)
    int plain_end;
    const RowInfo& operator()(int, int half) const { return info[half]; }
  };

  struct Masked {
    bool rows;       // some row does not see some of the tile
    unsigned boxes;  // bit i: box i is there
  };

  static int thread_here() { return ptx::thread_index_here() % kWarpgroupThreads; }
  static int lane_here() { return ptx::thread_index_here() % 32; }
  static int warp_here() { return thread_here() / 32; }

  /// Waits until it is there.
  Task find_task(int number, int item) const {
    shared_.records().wait_full(number);
    const plan::Task& record = shared_.record(number);
    Task task{number, item, ptx::warp_uniform(record.request) == kNoRequest, Tiles(record)};
    task.tiles.count = ptx::warp_uniform(task.tiles.count);
    return task;
  }
  Task next_of(const Task& task) const {
    return find_task(task.number + 1, task.item + task.tiles.items());
  }

  /// The task's rows that this warpgroup has; none where row_end <= row_begin.
  plan::Task rows_of(const Task& task) const {
    plan::Task rows = shared_.record(task.number);
    const int skipped = warpgroup_ * kWarpgroupRows;
    rows.row_begin += skipped;
    rows.row_end = min(rows.row_begin + kWarpgroupRows, rows.row_end);
    if (rows.partial >= 0) rows.partial += skipped;
    return rows;
  }

  /// Rows past the task's end are as its last one: nobody looks at them.
  Rows look_up_rows(int number) const {
    const plan::Task& record = shared_.record(number);
    const int first = record.row_begin + warpgroup_ * kWarpgroupRows + warp_here() * 16;
    Rows rows;
    HPCATTN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = min(first + half * 8 + lane_here() / 4, record.row_end - 1);
      rows.info[half] = row_info<kAttention>(p_, record, row);
    }
    // What the last row's window leaves out comes before, what the first row does not see yet
    // after.
    rows.plain_begin = __shfl_sync(0xffffffffU, rows.info[1].kv_begin, 31);
    rows.plain_end = __shfl_sync(0xffffffffU, rows.info[0].kv_end, 0);
    return rows;
  }

  void start_scores(Scores& scores, int number, std::uint32_t keys) const {
    const std::uint32_t rows = warpgroup_ * kWarpgroupRows * kLayout.line_bytes;
    ptx::wgmma_fence();
    Products::start_scores(scores, ptx::shared_address(shared_.q(number)) + rows, keys);
  }

  /// What of a tile is masked; K of it is there.
  Masked look_at(const Task& task, const Rows& rows, int tile) const {
    const int token = task.tiles.token(tile);
    const bool plain = token >= rows.plain_begin && token + kLayout.tile_kv <= rows.plain_end;
    return {!plain, shared_.boxes(task.key(tile))};
  }

  /// Scores of a tile, which are there, become exponentials. Returns whether the output so far is
  /// to be multiplied by `rescale`.
  bool exponentiate(const Task& task, const Rows& rows, int tile, const Masked& masked,
                    Scores& scores, RunningSoftmax& softmax, float (&rescale)[1][2]) const {
    Products::keep_order(scores);
    shared_.slots().release(task.key(tile));
    const int column = task.tiles.token(tile) + lane_here() % 4 * 2;
    if constexpr (kAttention.softcap || kAttention.alibi) {
      transform_scores<kAttention, Products>(scores, rows, column, p_.softcap);
    }
    if (masked.rows) mask_scores<Products>(scores, rows, column);
    if (masked.boxes != kAllBoxes) mask_boxes<Products>(scores, masked.boxes);
    const bool moved = softmax.update(scores, rescale, [&](int, int half) {
      return kAttention.softcap || kAttention.alibi ? 1.0F : rows(0, half).factor;
    });
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kTokenTiles; ++n) softmax.exponentiate(scores, n);
    return moved;
  }

  /// V of a tile is there, and what is dead of it cleared: by who transposes it, or by each
  /// warpgroup for itself.
  void wait_values(const Task& task, int tile, unsigned boxes) const {
    shared_.values().wait_full(task.value(tile));
    if constexpr (!kTransposes) {
      const plan::Task& record = shared_.record(task.number);
      const int token = task.tiles.token(tile);
      const LiveTokens live{record.kv_begin - token, record.kv_end - token, boxes};
      if (live.all<kLayout>()) return;
      clear_dead_values<kSpec, kLayout.tile_kv, kWarpgroupThreads>(
          shared_.value_address(task.value(tile)), live, 0, thread_here());
      ptx::fence_async_shared();
      sync_warpgroup(warpgroup_);
    }
  }

  void start_output(Output& output, const typename Products::Probabilities& probabilities,
                    const Task& task, int tile) const {
    ptx::wgmma_fence();
    Products::start_output(output, probabilities, shared_.value_address(task.value(tile)));
  }

  /// Returns the next task; scores of its first tile and `rows` are there if both have tiles.
  Task run_tiles(const Task& task, bool started, Rows& rows, Scores& scores, Output& output,
                 RunningSoftmax& softmax) const {
    const auto slots = shared_.slots();
    const auto values = shared_.values();
    int multiplied = 0;  // the place of V whose product is under way
    const int last = task.tiles.count - 1;
    if (last < 0) {
      shared_.queries().wait_full(task.number);
      return next_of(task);
    }
    if (!started) {
      shared_.queries().wait_full(task.number);
      slots.wait_full(task.key(0));
      start_scores(scores, task.number, shared_.slot_address(task.key(0)));
      rows = look_up_rows(task.number);
      ptx::wgmma_wait<0>();
      Products::keep_order(scores);
    }
    float rescale[1][2];
    Masked masked = look_at(task, rows, 0);
    bool moved = exponentiate(task, rows, 0, masked, scores, softmax, rescale);

    typename Products::Probabilities probabilities;
    // Products of the output are waited for before the next are started, and not when exponentials
    // are done: the compiler moves such a wait to the start of its basic block, which would be
    // before the exponentials.
    const auto end_output = [&](int tile) {
      ptx::wgmma_wait<0>();
      Products::keep_order(output);
      if (tile > 0) values.release_place(multiplied);
      if (moved) rescale_output(output, rescale);
      Products::pack(probabilities, scores);
    };
    for (int tile = 0; tile < last; ++tile) {
      end_output(tile);
      slots.wait_full(task.key(tile + 1));
      const Masked next_masked = look_at(task, rows, tile + 1);
      start_scores(scores, task.number, shared_.slot_address(task.key(tile + 1)));
      wait_values(task, tile, masked.boxes);
      start_output(output, probabilities, task, tile);
      multiplied = values.place(task.value(tile));
      ptx::wgmma_wait<1>();
      masked = next_masked;
      moved = exponentiate(task, rows, tile + 1, masked, scores, softmax, rescale);
    }
    end_output(last);
    const Task next = next_of(task);
    // Where no scores follow, some are computed nevertheless, of what is there: the compiler can
    // not follow products that may or may not be under way.
    const bool starts = !next.is_end && next.tiles.count > 0;
    if (starts) {
      shared_.queries().wait_full(next.number);
      slots.wait_full(next.key(0));
    }
    start_scores(
        scores, starts ? next.number : task.number,
        starts ? shared_.slot_address(next.key(0)) : shared_.value_address(task.value(last)));
    wait_values(task, last, masked.boxes);
    start_output(output, probabilities, task, last);
    rows = look_up_rows(starts ? next.number : task.number);
    ptx::wgmma_wait<0>();
    Products::keep_order(scores);
    Products::keep_order(output);
    values.release(task.value(last));
    return next;
  }

  void store(const Task& task, const Output& output, RunningSoftmax& softmax) const {
    softmax.finish();
    const plan::Task rows = rows_of(task);
    const TaskOutput target(p_, rows, kAttention.head_dim);
    const int first_row = warp_here() * 16;
    if (stores_whole_rows(p_, rows)) {
      const int row = warpgroup_ * kWarpgroupRows + first_row;
      store_whole_rows<kSpec>(
          target, first_row, output, softmax,
          ptx::shared_address(shared_.q(task.number)) + row * kLayout.line_bytes, lane_here());
    } else {
      store_rows<Products>(target, first_row, output, softmax);
    }
    if (rows.partial < 0) return;
    join_partials<kAttention.head_dim, kThreads, 4, 8>(
        p_, shared_.record(task.number), shared_.flag(),
        warpgroup_ * kWarpgroupThreads + thread_here(),
        [] { ptx::barrier_sync(kComputeBarrier, kThreads); });
    // Tells the compiler that lanes are together again: without it descriptors of all products are
    // computed lane by lane.
    sync_warpgroup(warpgroup_);
  }

  static void clear(Output& output) {
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kDimTiles; ++n) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) output[0][n][e] = 0.0F;
    }
  }

  static void rescale_output(Output& output, const float (&rescale)[1][2]) {
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kDimTiles; ++n) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) output[0][n][e] *= rescale[0][e / 2];
    }
  }

  const AttentionParams& p_;
  const PrefillShared<kSpec>& shared_;
  int warpgroup_;
};

}  // namespace hpcattn
