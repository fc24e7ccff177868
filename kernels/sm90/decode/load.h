// SPDX-License-Identifier: Apache-2.0
// The warp that claims tasks and starts copies: it runs ahead of those that compute by as much as
// the ring holds, over the ends of tasks too.
#pragma once

#include "kernels/generic/attention/output.h"
#include "kernels/ptx/memory.h"
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

/// q of a task into L2, before its K and V are asked for: behind them it would wait for all that
/// the ring holds.
template <DecodeSpec kSpec>
inline void fetch_query(const AttentionParams& p, const plan::Task& task, int lane) {
  constexpr int kRowBytes =
      kSpec.attention.head_dim * static_cast<int>(size_bytes(kSpec.attention.q_dtype));
  HPCATTN_NO_UNROLL
  for (int row = task.row_begin + lane; row < task.row_end; row += 32) {
    const RowPlace place(task.first_token, task.kv_head, p.group, row);
    const char* const q =
        static_cast<const char*>(p.q) + (place.token * p.q_token + place.head * p.q_head) *
                                            static_cast<int>(size_bytes(kSpec.attention.q_dtype));
    HPCATTN_UNROLL
    for (int byte = 0; byte < kRowBytes; byte += 128) ptx::fetch_into_l2(q + byte);
  }
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
  for_each_task(p, lane, task_at, [&](const plan::Task& task, const auto& take) {
    // Under way with the length that task_fits() looks at.
    const int first_page = page_of<kSpec>(p, task, TileRange<kTileKv>(task).begin, lane);
    if (!task_fits(p, task, lane == 0)) return;
    if (num_passes > 0) fetch_query<kSpec>(p, task, lane);
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
