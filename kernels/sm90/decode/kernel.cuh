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
inline void run_pass_of_rows(const DecodeParams& params, const Pass& pass,
                             const DecodeShared<kSpec>& shared) {
  constexpr int kMost = kSpec.rows / 8;
  const int rows = pass.task.row_end - pass.task.row_begin;
  if (rows <= kSpec.rows / 2) {
    run_pass<kSpec, kMost / 2>(params, pass, shared);
  } else {
    run_pass<kSpec, kMost>(params, pass, shared);
  }
}

template <DecodeSpec kSpec>
inline void decode(const DecodeParams& params) {
  constexpr int kHeadDim = kSpec.attention.head_dim;
  // The copy engine's swizzle counts from multiples of 1024 bytes.
  extern __shared__ __align__(1024) char shared[];
  const AttentionParams& p = params.attention;
  const DecodeShared<kSpec> parts{shared};
  if (threadIdx.x == 0) parts.init();
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();
  const bool loads = threadIdx.x >= kAttentionThreads;
  const plan::Task first = load_first_task(p);
  if (!plan_fits(p, p.fault)) return;
  __syncthreads();

  const auto lane = static_cast<int>(threadIdx.x) % 32;
  if (loads) {
    load_tasks<kSpec>(params, first, parts, lane);
    write_padding<kHeadDim, 32>(p, lane);
    return;
  }
  // q of the first pass comes before K and V are asked for: behind them it would wait for all that
  // the ring holds.
  const auto prepare = [&](const plan::Task& task) {
    prepare_rows<kSpec>(p, task, parts.q(), parts.infos(), ptx::thread_index_here());
  };
  const bool has_first = may_look_ahead(p, first);
  if (has_first) prepare(pass_of<kSpec.rows>(first, 0).task);
  for (int i = 0;; ++i) {
    parts.passes().wait_full(i);
    const Pass& pass = parts.pass(i);
    if (pass.is_end()) return;
    if (i > 0 || !has_first) prepare(pass.task);
    sync_computing();
    run_pass_of_rows(params, pass, parts);
    if (pass.task.partial >= 0 && pass.is_last != 0) {
      join_partials<kHeadDim, kAttentionThreads, 2, 16>(
          p, pass.task, parts.last_arrived(), ptx::thread_index_here(), [] { sync_computing(); });
    }
    parts.passes().release(i);
  }
}

}  // namespace hpcattn
