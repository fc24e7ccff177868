// SPDX-License-Identifier: Apache-2.0
// Hopper's prefill kernel: a persistent grid, a cta on each multiprocessor. The first warpgroup
// brings K, V and q, the next compute 64 rows each, and with fp8 the last transposes V.
#pragma once

#include "kernels/generic/attention/plan_fits.h"
#include "kernels/ptx/dependent.h"
#include "kernels/ptx/registers.h"
#include "kernels/ptx/thread.h"
#include "kernels/sm90/prefill/load.h"
#include "kernels/sm90/prefill/query.h"
#include "kernels/sm90/prefill/task.h"
#include "kernels/sm90/prefill/transpose.h"

namespace hpcattn {

template <PrefillSpec kSpec>
inline void prefill(const PrefillParams& params) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  // The swizzle counts from multiples of 1024 bytes.
  extern __shared__ __align__(1024) char shared[];
  const AttentionParams& p = params.attention;
  const PrefillShared<kSpec> parts{shared};
  if (threadIdx.x == 0) parts.init(p.plan != nullptr);
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();
  const bool claims = threadIdx.x < 32;
  if (claims) load_first_task(p);  // into L1, on its way with the header
  if (p.plan != nullptr && !plan_fits(p, p.fault)) return;
  __syncthreads();

  constexpr int kComputing = kLayout.warpgroups * kWarpgroupThreads;
  if (threadIdx.x < kWarpgroupThreads) {
    ptx::give_registers<PrefillLayout::kLoadRegisters>();
    const auto thread = static_cast<int>(threadIdx.x);
    if (claims) {
      load_keys_and_values<kSpec>(params, parts, thread);
    } else {
      load_queries<kSpec>(p, parts, thread - 32);
    }
  } else if (!kLayout.transposes || threadIdx.x < kWarpgroupThreads + kComputing) {
    ptx::take_registers<kLayout.compute_registers()>();
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroupThreads;
    Warpgroup<kSpec>(p, parts, ptx::warp_uniform(thread / kWarpgroupThreads)).run();
    write_padding<kSpec.attention.head_dim, kComputing>(p, thread);
  } else if constexpr (kLayout.transposes) {
    ptx::give_registers<kLayout.transpose_registers()>();
    transpose_values<kSpec>(parts, static_cast<int>(threadIdx.x) - kWarpgroupThreads - kComputing);
  }
}

}  // namespace hpcattn
