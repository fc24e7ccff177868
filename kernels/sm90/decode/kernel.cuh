// SPDX-License-Identifier: Apache-2.0
// Hopper's decode kernel: a persistent grid, one cta for each worker of the plan. One warp starts
// copies of K and V, four compute.
#pragma once

#include "kernels/generic/attention/combine.h"
#include "kernels/generic/attention/plan_fits.h"
#include "kernels/ptx/dependent.h"
#include "kernels/sm90/decode/load.h"
#include "kernels/sm90/decode/task.h"

namespace hpcattn {

/// After a task's last pass: where its KV was split, the last to come joins the partial results.
template <DecodeSpec kSpec>
inline void finish_task(const AttentionParams& p, Pass pass, char* base) {
  const plan::Task task = load_task(p, pass.task);
  const bool last = task.row_begin + (pass.slice + 1) * kDecodeRows >= task.row_end;
  if (task.partial < 0 || !last) return;
  join_partials<kSpec.attention.head_dim, kAttentionThreads>(
      p, task, reinterpret_cast<int*>(base + decode_layout(kSpec).flag_offset),
      ptx::thread_index_here(), [] { ptx::barrier_sync(kComputeBarrier, kAttentionThreads); });
}

template <DecodeSpec kSpec>
inline void decode(const DecodeParams& params) {
  // The copy engine's swizzle counts from multiples of 1024 bytes.
  extern __shared__ __align__(1024) char shared[];
  const AttentionParams& p = params.attention;
  const DecodeRing<kSpec> ring(ptx::shared_address(shared));
  if (threadIdx.x == 0) ring.init();
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();
  if (!plan_fits(p, p.fault)) return;
  __syncthreads();

  int item = 0;
  if (threadIdx.x >= kAttentionThreads) {
    const auto lane = static_cast<int>(threadIdx.x) % 32;
    for_each_pass(p, [&](Pass pass) {
      item = load_task_tiles<kSpec>(params, load_pass(p, pass), ring, item, lane);
    });
  } else {
    for_each_pass(p, [&](Pass pass) {
      const plan::Task task = load_pass(p, pass);
      item = task.row_end - task.row_begin <= 8
                 ? run_pass<kSpec, 1>(params, pass, shared, ring, item)
                 : run_pass<kSpec, 2>(params, pass, shared, ring, item);
      finish_task<kSpec>(p, pass, shared);
    });
    write_padding<kSpec.attention.head_dim, kAttentionThreads>(p, static_cast<int>(threadIdx.x));
  }
}

}  // namespace hpcattn
