// SPDX-License-Identifier: Apache-2.0
// The warp that starts copies of K and V: it runs ahead of those that compute by as much as the
// ring holds, over the ends of tasks too.
#pragma once

#include "kernels/ptx/tensor_copy.h"
#include "kernels/sm90/prefill/params.h"
#include "kernels/sm90/prefill/ring.h"
#include "kernels/sm90/prefill/tasks.h"
#include "kernels/sm90/prefill/tiles.h"
#include "kernels/sm90/tasks.h"

namespace hpcattn {

/// K and V of one task, a lane for each box of a tile. `item`: of the ring, the task's first. Calls
/// before_last() when the last tile's V is next.
template <PrefillSpec kSpec, typename BeforeLast>
inline void load_task_tiles(const PrefillParams& params, const plan::Task& task,
                            const PrefillShared<kSpec>& shared, int item, int lane,
                            const BeforeLast& before_last) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  constexpr int kBoxes = kLayout.tile_kv / kLayout.box_tokens;
  constexpr int kPageSize = kSpec.page_size > 0 ? kSpec.page_size : 1;  // where there are pages
  constexpr int kBoxBytes = kLayout.box_tokens * kLayout.line_bytes;
  const AttentionParams& p = params.attention;
  constexpr bool kPacked = kSpec.page_size == 0;
  const std::int32_t* const table = p.page_table + task.request * p.table_request;
  // Of the request, among all packed ones.
  const int first_token = kPacked ? p.cu_seqlens_k[task.request * p.cu_k_stride] : 0;
  const TileItems<kLayout> tiles(task);
  const auto slots = shared.slots();

  const auto token_of = [&](int tile) { return tiles.token(tile) + lane * kLayout.box_tokens; };
  // This lane's page of a tile; below 0 where there is none, or nothing of it is seen.
  const auto page_of = [&](int tile) {
    const int token = token_of(tile);
    if (lane >= kBoxes || token >= task.kv_end) return -1;
    if constexpr (kPacked) {
      return 0;
    } else {
      return table[token / kPageSize * p.table_page];
    }
  };
  const auto load = [&](int at, int tile, int page, const TensorMap& map) {
    slots.wait_empty(at);
    const unsigned boxes = __ballot_sync(0xffffffffU, page >= 0);
    if (lane == 0) {
      shared.boxes(at) = boxes;
      ptx::mbarrier_arrive_expect(slots.full_barrier(at),
                                  __popc(boxes) * kLayout.lines * kBoxBytes);
    }
    __syncwarp();
    if (page < 0) return;
    const int place = kPacked ? first_token + token_of(tile) : token_of(tile) % kPageSize;
    const std::uint32_t to = shared.slot_address(at) + lane * kBoxBytes;
    HPCATTN_UNROLL
    for (int line = 0; line < kLayout.lines; ++line) {
      ptx::tensor_copy_5d(to + line * kLayout.tile_kv * kLayout.line_bytes, map,
                          slots.full_barrier(at), 0, place, line, task.kv_head, page);
    }
  };

  if (tiles.count == 0) return;
  int page = page_of(0);
  load(item, 0, page, params.k_map);
  for (int tile = 0; tile < tiles.count; ++tile) {
    const int next_page = page_of(tile + 1);
    if (tile + 1 < tiles.count) load(item + tiles.key(tile + 1), tile + 1, next_page, params.k_map);
    if (tile + 1 == tiles.count) before_last();
    load(item + tiles.value(tile), tile, page, params.v_map);
    page = next_page;
  }
}

/// The cta's tasks, as the warp that loads K and V comes to know of them: it claims those of a
/// plan; without one they are sent to it, as to all others. One piece of code for both, so that
/// there is one for the copies.
template <PrefillSpec kSpec>
struct LoadedTasks {
  const AttentionParams& p;
  const PrefillShared<kSpec>& shared;
  const int& number;  // of the task that comes next

  bool planned() const { return p.plan != nullptr; }
  int first() const { return planned() ? first_task(p) : wait_for_record(); }
  Ticket take() const { return planned() ? take_ticket(p) : 0; }
  int next(Ticket ticket) const { return planned() ? next_task(p, ticket) : wait_for_record(); }

  /// By all lanes.
  plan::Task at(int index) const {
    if (planned()) return load_task(p, index);
    shared.records().wait_full(number);
    const plan::Task task = shared.record(number);
    shared.records().release(number);
    return task;
  }

 private:
  int wait_for_record() const {
    shared.records().wait_full(number);
    return shared.record(number).request == kNoRequest ? kNoTask : number;
  }
};

/// All tasks of this cta; one warp.
template <PrefillSpec kSpec>
inline void load_keys_and_values(const PrefillParams& params, const PrefillShared<kSpec>& shared,
                                 int lane) {
  int number = 0;
  int item = 0;
  const AttentionParams& p = params.attention;
  const LoadedTasks<kSpec> tasks{p, shared, number};
  const auto load = [&](const plan::Task& task, const auto& before_last) {
    if (tasks.planned()) {
      if (!task_fits(p, task, lane == 0)) return;
      send_record<kSpec>(shared, number, task, lane);
    }
    load_task_tiles<kSpec>(params, task, shared, item, lane, before_last);
    item += TileItems<prefill_layout(kSpec)>(task).items();
    ++number;
  };
  for_each_task(tasks, lane, [&](int i) { return tasks.at(i); }, load);
  if (tasks.planned()) send_end<kSpec>(shared, number, lane);
}

}  // namespace hpcattn
