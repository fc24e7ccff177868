// SPDX-License-Identifier: Apache-2.0
// Named barriers of the warps that compute (0 is the cta's).
#pragma once

#include "kernels/ptx/barrier.h"
#include "kernels/sm90/prefill/config.h"

namespace hpcattn {

inline constexpr int kComputeBarrier = 1;  // of all of them
inline constexpr int kWarpgroupBarrier = 2;

inline void sync_warpgroup(int warpgroup) {
  ptx::barrier_sync(kWarpgroupBarrier + warpgroup, kWarpgroupThreads);
}

}  // namespace hpcattn
