// SPDX-License-Identifier: Apache-2.0
// Entry of rope_norm_store_kv's kernel: which team takes which rows.
#pragma once

#include "kernels/fused/rope/rows.h"
#include "kernels/ptx/dependent.h"
#include "kernels/tile/lane_team.h"

namespace hpcattn {

template <RopeSpec kSpec>
__device__ void rope(const RopeParams& p) {
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();
  constexpr std::int64_t kThreads = kRopeThreads;
  clear_counters(p, blockIdx.x * kThreads + threadIdx.x, gridDim.x * kThreads);
  LaneTeam<RopeLane, kRopeThreads> team(rope_lanes(p.head_dim));
  if constexpr (kSpec.norm == RopeNorm::kToken) {
    // A cta to a token: its teams share the sum over heads.
    const RowRange rows{team.team(), p.num_rows(), team.num_teams()};
    rope_rows<kSpec>(p, team, blockIdx.x, rows);
  } else {
    const std::int64_t unit = std::int64_t{blockIdx.x} * team.num_teams() + team.team();
    const std::int64_t token = quotient(unit, p.teams_per_token());
    if (token >= p.num_tokens) return;
    const auto part = static_cast<std::int32_t>(unit - token * p.teams_per_token());
    const std::int32_t first = part * p.rows_per_team;
    const std::int32_t end = first + p.rows_per_team;
    const RowRange rows{first, end < p.num_rows() ? end : p.num_rows(), 1};
    rope_rows<kSpec>(p, team, token, rows);
  }
}

}  // namespace hpcattn
