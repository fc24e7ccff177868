// SPDX-License-Identifier: Apache-2.0
// Hopper's decode kernel: a persistent grid, whose ctas claim the plan's tasks one by one. One warp
// claims them and starts copies of K and V, four compute.
#pragma once

#include "kernels/generic/attention/combine.h"
#include "kernels/generic/attention/plan_fits.h"
#include "kernels/ptx/dependent.h"
#include "kernels/sm90/decode/load.h"
#include "kernels/sm90/decode/task.h"

namespace hpcattn {

/// A pass of half of kSpec.rows where they are enough.
template <DecodeSpec kSpec>
inline int run_pass_of_rows(const DecodeParams& params, const Pass& pass,
                            const DecodeShared<kSpec>& shared, const DecodeRing<kSpec>& ring,
                            int item) {
  constexpr int kMost = kSpec.rows / 8;
  const int rows = pass.task.row_end - pass.task.row_begin;
  return rows <= kSpec.rows / 2 ? run_pass<kSpec, kMost / 2>(params, pass, shared, ring, item)
                                : run_pass<kSpec, kMost>(params, pass, shared, ring, item);
}

template <DecodeSpec kSpec>
inline void decode(const DecodeParams& params) {
  constexpr int kHeadDim = kSpec.attention.head_dim;
  // The copy engine's swizzle counts from multiples of 1024 bytes.
  extern __shared__ __align__(1024) char shared[];
  const AttentionParams& p = params.attention;
  const DecodeRing<kSpec> ring(ptx::shared_address(shared));
  const PassQueue<kSpec> queue(shared);
  if (threadIdx.x == 0) {
    ring.init();
    queue.init();
    ptx::fence_mbarrier_init();
  }
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();
  const bool loads = threadIdx.x >= kAttentionThreads;
  // Under way with the header, if the tensor has that place.
  plan::Task task{};
  if (loads && p.layout.holds(std::int64_t{blockIdx.x} + 1, 0)) {
    task = load_task(p, static_cast<int>(blockIdx.x));
  }
  if (!plan_fits(p, p.fault)) return;
  __syncthreads();

  if (loads) {
    const auto lane = static_cast<int>(threadIdx.x) % 32;
    load_tasks<kSpec>(params, task, ring, queue, lane);
    write_padding<kHeadDim, 32>(p, lane);
    return;
  }
  const DecodeShared<kSpec> parts{shared};
  int item = 0;
  for (int i = 0;; ++i) {
    const Pass& pass = queue.receive(i);
    if (pass.is_end()) return;
    item = run_pass_of_rows(params, pass, parts, ring, item);
    if (pass.task.partial >= 0 && pass.is_last()) {
      join_partials<kHeadDim, kAttentionThreads>(p, pass.task, &parts.state().last_arrived,
                                                 ptx::thread_index_here(),
                                                 [] { sync_computing(); });
    }
    queue.release(i, ptx::thread_index_here() % 32);
  }
}

}  // namespace hpcattn
