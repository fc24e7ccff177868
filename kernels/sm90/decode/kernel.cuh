// SPDX-License-Identifier: Apache-2.0
// Hopper's decode kernel: a persistent grid, one cta for each worker of the plan. One warp starts
// copies of K and V, four compute.
#pragma once

#include "kernels/generic/attention/plan_fits.h"
#include "kernels/sm90/decode/load.h"
#include "kernels/sm90/decode/task.h"

namespace hpcattn {

template <DecodeSpec kSpec>
inline void decode(const DecodeParams& params) {
  // The copy engine's swizzle counts from multiples of 1024 bytes.
  extern __shared__ __align__(1024) char shared[];
  const AttentionParams& p = params.attention;
  const DecodeRing<kSpec> ring(ptx::shared_address(shared));
  if (threadIdx.x == 0) ring.init();
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
    });
  }
}

}  // namespace hpcattn
