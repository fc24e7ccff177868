// SPDX-License-Identifier: Apache-2.0
// The warp that claims tasks and starts copies: it runs ahead of those that compute by as much as
// the ring holds, over the ends of tasks too.
#pragma once

#include "kernels/generic/attention/query.h"
#include "kernels/ptx/tensor_copy.h"
#include "kernels/sm90/decode/params.h"
#include "kernels/sm90/decode/shared.h"
#include "kernels/sm90/tasks.h"

namespace hpcattn {

/// A lane's page of a tile; below 0 where it has none, or where nothing of it is seen.
template <DecodeSpec kSpec>
inline int page_of(const AttentionParams& p, const plan::Task& task, int tile, int lane) {
  constexpr int kTileKv = DecodeShared<kSpec>::kLayout.tile_kv;
  const int token = tile * kTileKv + lane * kSpec.box_tokens;
  if (lane >= kTileKv / kSpec.box_tokens || token >= task.kv_end ||
      token + kSpec.box_tokens <= task.kv_begin) {
    return -1;
  }
  return p.page_table[task.request * p.table_request + p.page_size.divide(token) * p.table_page];
}

/// One pass over K and V of a task, a lane for each page of a tile, of which `page` is the first
/// tile's. Returns the next item. Calls before_last() when the last tile's V is next.
template <DecodeSpec kSpec, typename BeforeLast>
inline int load_tiles(const DecodeParams& params, const plan::Task& task, int page,
                      const DecodeShared<kSpec>& shared, int item, int lane,
                      const BeforeLast& before_last) {
  constexpr DecodeLayout kLayout = DecodeShared<kSpec>::kLayout;
  constexpr int kTileKv = kLayout.tile_kv;
  constexpr int kBoxBytes = kLayout.slot_bytes / (kTileKv / kSpec.box_tokens);
  const AttentionParams& p = params.attention;
  const TileRange<kTileKv> tiles(task);
  const auto slots = shared.slots();

  const auto load = [&](int tile, int from, const TensorMap& map) {
    slots.wait_empty(item);
    const unsigned boxes = __ballot_sync(0xffffffffU, from >= 0);
    if (lane == 0) {
      shared.boxes(item) = boxes;
      ptx::mbarrier_arrive_expect(slots.full_barrier(item), __popc(boxes) * kBoxBytes);
    }
    __syncwarp();
    if (from >= 0) {
      const int token = tile * kTileKv + lane * kSpec.box_tokens;
      const int place = token - p.page_size.divide(token) * static_cast<int>(p.page_size.divisor);
      ptx::tensor_copy_5d(shared.slot_address(item) + lane * kBoxBytes, map,
                          slots.full_barrier(item), 0, place, 0, task.kv_head, from);
    }
    ++item;
  };

  if (tiles.begin == tiles.end) return item;
  int next_page = page_of<kSpec>(p, task, tiles.begin + 1, lane);
  load(tiles.begin, page, params.k_map);
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const int page_after = page_of<kSpec>(p, task, tile + 2, lane);
    if (tile + 1 < tiles.end) {
      load(tile + 1, next_page, params.k_map);
    } else {
      before_last();
    }
    load(tile, page, params.v_map);
    page = next_page;
    next_page = page_after;
  }
  return item;
}

/// All tasks of the cta; `first` is the one of its number, if there is one.
template <DecodeSpec kSpec>
inline void load_tasks(const DecodeParams& params, const plan::Task& first,
                       const DecodeShared<kSpec>& shared, int lane) {
  constexpr int kTileKv = DecodeShared<kSpec>::kLayout.tile_kv;
  const AttentionParams& p = params.attention;
  int item = 0;
  int num_passes = 0;
  // Where the plan has one, the cta's first task is the one of its number.
  const auto task_at = [&](int i) {
    return i == static_cast<int>(blockIdx.x) ? first : load_task(p, i);
  };
  for_each_task(PlannedTasks{p}, lane, task_at, [&](const plan::Task& task, const auto& take) {
    // Under way with the length that task_fits() looks at.
    const int first_page = page_of<kSpec>(p, task, TileRange<kTileKv>(task).begin, lane);
    if (!task_fits(p, task, lane == 0)) return;
    // Behind K and V it would wait for all that the ring holds.
    if (num_passes > 0) fetch_query<kSpec.attention, 32>(p, task, lane);
    const int num_slices = (task.row_end - task.row_begin + kSpec.rows - 1) / kSpec.rows;
    for (int slice = 0; slice < num_slices; ++slice) {
      Pass pass = pass_of<kSpec.rows>(task, slice);
      pass.item = item;
      shared.send(num_passes++, pass, lane);
      item = load_tiles<kSpec>(params, pass.task, first_page, shared, item, lane, [&] {
        if (slice + 1 == num_slices) take();
      });
    }
  });
  shared.send(num_passes, Pass::end(), lane);
}

}  // namespace hpcattn
