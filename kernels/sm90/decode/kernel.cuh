// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper: narrow tasks by the copy engine and transposed products, wide ones by the
// generic mainloop, in one persistent grid over one plan.
#pragma once

#include "kernels/generic/attention/kernel.cuh"
#include "kernels/sm90/decode/task.h"

namespace hpcattn {

template <DecodeSpec kSpec>
inline void attention_sm90(const DecodeParams& params) {
  constexpr AttentionSpec kAttention = kSpec.attention;
  using Config = AttentionConfig<kAttention>;
  // The copy engine's swizzle counts from multiples of 1024 bytes.
  extern __shared__ __align__(1024) char shared_sm90[];
  const AttentionParams& p = params.attention;
  const DecodeRing<kSpec> ring(ptx::shared_address(shared_sm90));
  if (threadIdx.x == 0) ring.init();
  if (!plan_fits(p, p.fault)) return;
  __syncthreads();

  const std::int32_t* const begin = p.plan + p.layout.worker_begin();
  int item = 0;
  for (int i = begin[blockIdx.x]; i < begin[blockIdx.x + 1]; ++i) {
    const plan::Task task = load_task(p, i);
    if (!task_fits(p, task)) continue;
    const int rows = task.row_end - task.row_begin;
    if (rows <= 8) {
      item = run_narrow_task<kSpec, 1>(params, task, shared_sm90, ring, item);
    } else if (rows <= Config::kNarrow.rows()) {
      item = run_narrow_task<kSpec, 2>(params, task, shared_sm90, ring, item);
    } else {
      i = run_task<kAttention, Config::kWide>(p, i, shared_sm90);
      ptx::fence_async_shared();
      __syncthreads();
    }
  }
}

}  // namespace hpcattn
