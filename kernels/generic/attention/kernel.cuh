// SPDX-License-Identifier: Apache-2.0
// The generic attention kernel: a persistent grid, whose ctas claim the plan's tasks one by one.
// Few rows and many rows are two shapes of the same mainloop.
#pragma once

#include "kernels/generic/attention/claims.h"
#include "kernels/generic/attention/combine.h"
#include "kernels/generic/attention/config.h"
#include "kernels/generic/attention/epilogue.h"
#include "kernels/generic/attention/load.h"
#include "kernels/generic/attention/load_task.h"
#include "kernels/generic/attention/mask.h"
#include "kernels/generic/attention/multiply.h"
#include "kernels/generic/attention/params.h"
#include "kernels/generic/attention/plan_fits.h"
#include "kernels/generic/attention/query.h"
#include "kernels/generic/attention/scores.h"
#include "kernels/ptx/copy.h"
#include "kernels/ptx/dependent.h"
#include "kernels/ptx/thread.h"

namespace hpcattn {

/// The parts of shared memory (config.h).
template <AttentionSpec kSpec>
struct SharedMemory {
  using Config = AttentionConfig<kSpec>;
  static_assert(sizeof(TaskState) + sizeof(int) <= Config::kStateBytes);
  TaskState* state;
  int* next_task;  // of the cta; not of the task that the state is of
  RowInfo* infos;
  std::int32_t* pages;
  float2* maxima;
  char* q;

  explicit SharedMemory(char* base)
      : state(reinterpret_cast<TaskState*>(base)),
        next_task(reinterpret_cast<int*>(base + Config::kStateBytes) - 1),
        infos(reinterpret_cast<RowInfo*>(base + Config::kStateBytes)),
        pages(reinterpret_cast<std::int32_t*>(base + Config::kStateBytes + Config::kInfoBytes)),
        maxima(reinterpret_cast<float2*>(base + Config::kStateBytes + Config::kInfoBytes +
                                         Config::kPagesBytes)),
        q(base + Config::kFixedBytes) {}
  char* slots(int rows) const { return q + rows * Config::kQStride; }
};

/// All but the joining of partial results; `shared.next_task` is then the next task.
template <AttentionSpec kSpec, TaskShape kShape>
inline void run_task(const AttentionParams& p, int task_index, char* base) {
  using Config = AttentionConfig<kSpec>;
  using Products = Multiply<kSpec, kShape>;
  using RunningSoftmax = Softmax<kShape.row_tiles, Products::kTokenTiles>;
  constexpr int kSlotBytes = kShape.tile_kv * Config::kKvStride;
  constexpr int kAhead = kShape.slots - 1;  // copies under way

  const SharedMemory<kSpec> shared(base);
  const std::uint32_t slots = ptx::shared_address(shared.slots(kShape.rows()));
  const int thread = ptx::thread_index_here();
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_row = warp / kShape.kv_warps * kShape.row_tiles * 16;
  const int warp_token = warp % kShape.kv_warps * Products::kWarpTokens;

  const plan::Task task = load_task(p, task_index);
  int tile = task.kv_begin / kShape.tile_kv;
  const int end_tile =
      task.kv_end > task.kv_begin ? (task.kv_end + kShape.tile_kv - 1) / kShape.tile_kv : tile;
  if (thread == 0) *shared.state = TaskState::of<Config::kKvBytes>(p, task, task_index);
  __syncthreads();

  // The ring's items are K and V of a tile by turns: `ahead` counts them from K of `tile` on.
  KvLoader<kSpec, kShape> loader(p, *shared.state, shared.pages, thread);
  const auto load_item = [&](int ahead, int slot) {
    if (tile + ahead / 2 < end_tile) {
      const std::uint32_t address = slots + slot * kSlotBytes;
      if (ahead % 2 == 1) {
        loader.load_v(tile + ahead / 2, address);
      } else {
        loader.load_k(tile + ahead / 2, address);
      }
    }
    ptx::cp_async_commit();
    __syncwarp();  // page ids, from K's lanes to V's
  };
  loader.look_up(tile);
  HPCATTN_UNROLL
  for (int item = 0; item < kAhead; ++item) load_item(item, item);
  write_row_infos<kSpec, kShape.rows()>(p, task, shared.infos, thread);
  store_query<kSpec, kShape.rows()>(p, task, shared.q, thread);
  __syncthreads();
  if (thread == 0) {
    // What the last row's window leaves out comes before, what the first row does not see yet
    // after.
    const int last = min(kShape.rows(), task.row_end - task.row_begin) - 1;
    shared.state->plain_begin = shared.infos[last].kv_begin;
    shared.state->plain_end = shared.infos[0].kv_end;
  }

  const RowInfo* const infos = shared.infos + first_row + lane / 4;
  const auto row_here = [&](int i, int half) -> const RowInfo& { return infos[i * 16 + half * 8]; };
  const std::uint32_t q_address = ptx::shared_address(shared.q) + first_row * Config::kQStride;
  typename Products::Output output;
  HPCATTN_UNROLL
  for (int i = 0; i < kShape.row_tiles; ++i) {
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kDimTiles; ++n) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) output[i][n][e] = 0.0F;
    }
  }
  RunningSoftmax softmax;
  bool has_holes = false;
  int slot = 0;
  const auto free_slot = [&] { return slot == 0 ? kShape.slots - 1 : slot - 1; };
  const auto slot_address = [&] {
    return slots + slot * kSlotBytes + warp_token * Config::kKvStride;
  };

  for (; tile < end_tile; ++tile) {
    // Past this barrier K of this tile is there for all, and the slot before it is free.
    ptx::cp_async_wait<kAhead - 1>();
    has_holes = __syncthreads_or(loader.saw_hole());
    load_item(kAhead, free_slot());

    typename Products::Scores scores;
    Products::query_keys(scores, q_address, slot_address(), lane);
    slot = slot + 1 == kShape.slots ? 0 : slot + 1;
    const int token = tile * kShape.tile_kv;
    const int column = warp_token + lane % 4 * 2;
    const bool masked =
        token < shared.state->plain_begin || token + kShape.tile_kv > shared.state->plain_end;
    if constexpr (kSpec.softcap || kSpec.alibi) {
      transform_scores<kSpec, Products>(scores, row_here, token + column, p.softcap);
    }
    if (masked) mask_scores<Products>(scores, row_here, token + column);
    if (has_holes) {
      mask_holes<Products>(scores,
                           shared.pages + tile % Config::kMaxSlots * kShape.tile_kv + column);
    }
    float rescale[kShape.row_tiles][2];
    const bool moved = softmax.update(scores, rescale, [&](int i, int half) {
      return kSpec.softcap || kSpec.alibi ? 1.0F : row_here(i, half).factor;
    });
    if (moved) {
      HPCATTN_UNROLL
      for (int i = 0; i < kShape.row_tiles; ++i) {
        HPCATTN_UNROLL
        for (int n = 0; n < Products::kDimTiles; ++n) {
          HPCATTN_UNROLL
          for (int e = 0; e < 4; ++e) output[i][n][e] *= rescale[i][e / 2];
        }
      }
    }

    ptx::cp_async_wait<kAhead - 1>();
    __syncthreads();
    load_item(kAhead + 1, free_slot());
    Products::probabilities_values(output, scores, softmax, slot_address(), lane);
    slot = slot + 1 == kShape.slots ? 0 : slot + 1;
  }
  ptx::cp_async_wait<0>();
  softmax.finish();
  __syncthreads();  // the slots are free for what follows
  if (ptx::thread_index_here() == 0) *shared.next_task = next_task(p, take_ticket(p));

  const plan::Task done_task = load_task(p, shared.state->task_index);
  const TaskOutput target(p, done_task, Config::kHeadDim);
  if constexpr (kShape.kv_warps == 1) {
    const int first_row_here = ptx::thread_index_here() / 32 * kShape.row_tiles * 16;
    store_rows<Products>(target, first_row_here, output, softmax);
  } else {
    reduce_and_store_rows<Products>(target, output, softmax, shared.maxima,
                                    reinterpret_cast<float*>(shared.slots(kShape.rows())));
  }
}

template <AttentionSpec kSpec>
inline void attention(const AttentionParams& p) {
  using Config = AttentionConfig<kSpec>;
  extern __shared__ __align__(16) char shared[];
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();
  if (!plan_fits(p, p.fault)) return;
  const SharedMemory<kSpec> memory(shared);
  int i = first_task(p);
  while (i != kNoTask) {
    const plan::Task task = load_task(p, i);
    const bool fits = task_fits(p, task, threadIdx.x == 0);
    if (!fits) {
      if (threadIdx.x == 0) *memory.next_task = next_task(p, take_ticket(p));
    } else if (task.row_end - task.row_begin <= Config::kNarrow.rows()) {
      run_task<kSpec, Config::kNarrow>(p, i, shared);
    } else {
      run_task<kSpec, Config::kWide>(p, i, shared);
    }
    // Once for both shapes: it is long, and the compiler takes its time for it.
    if (fits) {
      join_partials<kSpec.head_dim, kAttentionThreads, 2, 16>(
          p, load_task(p, i), &memory.state->last_arrived, ptx::thread_index_here(),
          [] { __syncthreads(); });
    }
    __syncthreads();
    i = *memory.next_task;
    __syncthreads();  // all have read it, before the next task writes to shared memory
  }
  write_padding<kSpec.head_dim, kAttentionThreads>(p, static_cast<int>(threadIdx.x));
}

}  // namespace hpcattn
