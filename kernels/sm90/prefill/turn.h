// SPDX-License-Identifier: Apache-2.0
// How the warpgroups that compute wait for each other.
#pragma once

#include "kernels/ptx/barrier.h"
#include "kernels/sm90/prefill/config.h"

namespace hpcattn {

/// Named barriers (0 is the cta's): of all that compute, of a warpgroup, and its turn to multiply.
inline constexpr int kComputeBarrier = 1;
inline constexpr int kWarpgroupBarrier = 2;
inline constexpr int kTurnBarrier = 4;

/// The warpgroups start products by turns: while one multiplies, the other takes exponentials.
template <int kWarpgroups>
struct Turn {
  static_assert(kWarpgroups == 1 || kWarpgroups == 2);
  static constexpr bool kWaits = kWarpgroups > 1 && kTurnEnds != TurnEnds::kNever;
  static constexpr int kThreads = kWarpgroups * kWarpgroupThreads;
  int warpgroup;

  /// Once, before the first task: the first one's turn.
  void begin() const {
    if (warpgroup == kWarpgroups - 1) pass();
  }
  void wait() const {
    if constexpr (kWaits) ptx::barrier_sync(kTurnBarrier + warpgroup, kThreads);
  }
  /// Its products are started, or its scores are there.
  void end_at(TurnEnds now) const {
    if (now == kTurnEnds) pass();
  }

 private:
  void pass() const {
    if constexpr (kWaits) ptx::barrier_arrive(kTurnBarrier + 1 - warpgroup, kThreads);
  }
};

inline void sync_warpgroup(int warpgroup) {
  ptx::barrier_sync(kWarpgroupBarrier + warpgroup, kWarpgroupThreads);
}

}  // namespace hpcattn
