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
inline void finish_task(const AttentionParams& p, Pass pass, const DecodeShared<kSpec>& shared) {
  const plan::Task task = load_task(p, pass.task);
  const bool last = task.row_begin + (pass.slice + 1) * kSpec.rows >= task.row_end;
  if (task.partial < 0 || !last) return;
  join_partials<kSpec.attention.head_dim, kAttentionThreads>(
      p, task, &shared.state().last_arrived, ptx::thread_index_here(), [] { sync_computing(); });
}

/// A pass of half of kSpec.rows where they are enough.
template <DecodeSpec kSpec>
inline int run_pass_of_rows(const DecodeParams& params, Pass pass, int rows,
                            const DecodeShared<kSpec>& shared, const DecodeRing<kSpec>& ring,
                            int item) {
  constexpr int kMost = kSpec.rows / 8;
  return rows <= kSpec.rows / 2 ? run_pass<kSpec, kMost / 2>(params, pass, shared, ring, item)
                                : run_pass<kSpec, kMost>(params, pass, shared, ring, item);
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
    for_each_pass<kSpec.rows>(p, [&](Pass pass) {
      item = load_task_tiles<kSpec>(params, load_pass<kSpec.rows>(p, pass), ring, item, lane);
    });
  } else {
    const DecodeShared<kSpec> parts{shared};
    for_each_pass<kSpec.rows>(p, [&](Pass pass) {
      const plan::Task task = load_pass<kSpec.rows>(p, pass);
      item = run_pass_of_rows(params, pass, task.row_end - task.row_begin, parts, ring, item);
      finish_task(p, pass, parts);
    });
    write_padding<kSpec.attention.head_dim, kAttentionThreads>(p, static_cast<int>(threadIdx.x));
  }
}

}  // namespace hpcattn
