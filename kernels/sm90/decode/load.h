// SPDX-License-Identifier: Apache-2.0
// The warp that claims tasks and starts copies: it runs ahead of those that compute by as much as
// the ring holds, over the ends of tasks too.
#pragma once

#include "kernels/generic/attention/claims.h"
#include "kernels/ptx/tensor_copy.h"
#include "kernels/sm90/decode/params.h"
#include "kernels/sm90/decode/ring.h"
#include "kernels/sm90/decode/tasks.h"

namespace hpcattn {

/// A lane's page of a tile; below 0 where it has none, or where nothing of it is seen.
template <DecodeSpec kSpec>
inline int page_of(const AttentionParams& p, const plan::Task& task, int tile, int lane) {
  constexpr int kTileKv = DecodeRing<kSpec>::kLayout.tile_kv;
  const int token = tile * kTileKv + lane * kSpec.box_tokens;
  if (lane >= kTileKv / kSpec.box_tokens || token >= task.kv_end ||
      token + kSpec.box_tokens <= task.kv_begin) {
    return -1;
  }
  return p.page_table[task.request * p.table_request + p.page_size.divide(token) * p.table_page];
}

/// One pass over K and V of a task, a lane for each page of a tile, of which `next_page` is the
/// first tile's. Returns the next item. Calls before_last() when the last tile's copies are next.
template <DecodeSpec kSpec, typename BeforeLast>
inline int load_tiles(const DecodeParams& params, const plan::Task& task, int next_page,
                      const DecodeRing<kSpec>& ring, int item, int lane,
                      const BeforeLast& before_last) {
  constexpr DecodeLayout kLayout = DecodeRing<kSpec>::kLayout;
  constexpr int kTileKv = kLayout.tile_kv;
  constexpr int kBoxTokens = kSpec.box_tokens;
  constexpr int kBoxes = kTileKv / kBoxTokens;
  constexpr int kBoxBytes = kLayout.slot_bytes / kBoxes;
  const AttentionParams& p = params.attention;
  const TileRange<kTileKv> tiles(task);

  const auto load = [&](int tile, int page, const TensorMap& map) {
    ring.wait_empty(item);
    const int boxes = __popc(__ballot_sync(0xffffffffU, page >= 0));
    if (lane == 0) ptx::mbarrier_arrive_expect(ring.full_barrier(item), boxes * kBoxBytes);
    __syncwarp();
    if (page >= 0) {
      const int token = tile * kTileKv + lane * kBoxTokens;
      const int place = token - p.page_size.divide(token) * static_cast<int>(p.page_size.divisor);
      ptx::tensor_copy_5d(ring.slot_address(item) + lane * kBoxBytes, map, ring.full_barrier(item),
                          0, place, 0, task.kv_head, page);
    }
    ++item;
  };

  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const int page = next_page;
    next_page = page_of<kSpec>(p, task, tile + 1, lane);
    if (tile + 1 == tiles.end) before_last();
    load(tile, page, params.k_map);
    load(tile, page, params.v_map);
  }
  return item;
}

/// All tasks of the cta; `task` is the one of its number, if there is one.
template <DecodeSpec kSpec>
inline void load_tasks(const DecodeParams& params, plan::Task task, const DecodeRing<kSpec>& ring,
                       const PassQueue<kSpec>& queue, int lane) {
  constexpr int kTileKv = DecodeRing<kSpec>::kLayout.tile_kv;
  const AttentionParams& p = params.attention;
  int item = 0;
  int num_passes = 0;
  int index = first_task(p);
  while (index != kNoTask) {
    // Under way with the length that task_fits() looks at.
    const int first_page = page_of<kSpec>(p, task, TileRange<kTileKv>(task).begin, lane);
    // Taken before the copies of the last tile, so that it has come when they are under way.
    Ticket ticket = 0;
    bool taken = false;
    const auto take = [&] {
      if (lane == 0) ticket = take_ticket(p);
      taken = true;
    };
    if (task_fits(p, task, lane == 0)) {
      const int num_slices = (task.row_end - task.row_begin + kSpec.rows - 1) / kSpec.rows;
      for (int slice = 0; slice < num_slices; ++slice) {
        const Pass pass = pass_of<kSpec.rows>(task, slice);
        queue.send(num_passes++, pass, lane);
        item = load_tiles<kSpec>(params, pass.task, first_page, ring, item, lane, [&] {
          if (slice + 1 == num_slices) take();
        });
      }
    }
    if (!taken) take();  // the task has no tile
    index = lane == 0 ? next_task(p, ticket) : 0;
    index = __shfl_sync(0xffffffffU, index, 0);
    if (index != kNoTask) task = load_task(p, index);
  }
  queue.send(num_passes, Pass::end(), lane);
}

}  // namespace hpcattn
