// SPDX-License-Identifier: Apache-2.0
// The warp that starts copies: it runs ahead of those that compute by as much as the ring holds,
// over the ends of tasks too.
#pragma once

#include "kernels/ptx/tensor_copy.h"
#include "kernels/sm90/decode/params.h"
#include "kernels/sm90/decode/ring.h"
#include "kernels/sm90/decode/tasks.h"

namespace hpcattn {

/// One pass over K and V of a task, a lane for each page of a tile. Returns the next item.
template <DecodeSpec kSpec>
inline int load_task_tiles(const DecodeParams& params, const plan::Task& task,
                           const DecodeRing<kSpec>& ring, int item, int lane) {
  constexpr DecodeLayout kLayout = DecodeRing<kSpec>::kLayout;
  constexpr int kTileKv = kLayout.tile_kv;
  constexpr int kBoxes = kTileKv / kLayout.box_tokens;
  constexpr int kBoxBytes = kLayout.slot_bytes / kBoxes;
  const AttentionParams& p = params.attention;
  const std::int32_t* const table = p.page_table + task.request * p.table_request;
  const TileRange<kTileKv> tiles(task);

  // This lane's page of a tile; below 0 where there is none, or nothing of it is seen.
  const auto page_of = [&](int tile) {
    const int token = tile * kTileKv + lane * kLayout.box_tokens;
    if (lane >= kBoxes || token >= task.kv_end || token + kLayout.box_tokens <= task.kv_begin) {
      return -1;
    }
    return table[token / kSpec.page_size * p.table_page];
  };
  const auto load = [&](int tile, int page, const TensorMap& map) {
    ring.wait_empty(item);
    const int boxes = __popc(__ballot_sync(0xffffffffU, page >= 0));
    if (lane == 0) ptx::mbarrier_arrive_expect(ring.full_barrier(item), boxes * kBoxBytes);
    __syncwarp();
    if (page >= 0) {
      const int token = tile * kTileKv + lane * kLayout.box_tokens;
      ptx::tensor_copy_5d(ring.slot_address(item) + lane * kBoxBytes, map, ring.full_barrier(item),
                          0, token % kSpec.page_size, 0, task.kv_head, page);
    }
    ++item;
  };

  int next_page = page_of(tiles.begin);
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const int page = next_page;
    next_page = page_of(tile + 1);
    load(tile, page, params.k_map);
    load(tile, page, params.v_map);
  }
  return item;
}

}  // namespace hpcattn
