// SPDX-License-Identifier: Apache-2.0
// Entry of merge_partials' kernel.
#pragma once

#include "kernels/merge/row.h"
#include "kernels/tile/lane_team.h"

namespace hpcattn {

template <MergeSpec kSpec>
__device__ void merge(const MergeParams& p) {
  LaneTeam<MergeLane, kMergeThreads> team(merge_lanes(p.head_dim));
  const std::int64_t row = std::int64_t{blockIdx.x} * team.num_teams() + team.team();
  if (row < p.num_rows) merge_row<kSpec>(p, team, row);
}

}  // namespace hpcattn
