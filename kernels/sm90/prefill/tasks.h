// SPDX-License-Identifier: Apache-2.0
// Records of tasks, from the warp that claims or finds them to the others.
#pragma once

#include "kernels/sm90/prefill/ring.h"
#include "kernels/sm90/prefill/whole_tiles.h"

namespace hpcattn {

/// The task of this number, or that there is none, to all that wait for it. By all lanes of one
/// warp.
template <PrefillSpec kSpec>
inline void send_record(const PrefillShared<kSpec>& shared, int number, const plan::Task& task,
                        int lane) {
  shared.records().wait_empty(number);
  if (lane == 0) shared.record(number) = task;
  shared.records().fill(number);
}
template <PrefillSpec kSpec>
inline void send_end(const PrefillShared<kSpec>& shared, int number, int lane) {
  plan::Task none;
  none.request = kNoRequest;
  send_record<kSpec>(shared, number, none, lane);
}

/// Of a call without a plan, the cta's task of this number, or after the last one that there is
/// none. Tasks are dealt out forwards and backwards by turns: each is a little shorter than the one
/// before, so that sums are alike.
template <PrefillSpec kSpec>
inline void send_whole_tile(const AttentionParams& p, const PrefillShared<kSpec>& shared,
                            int number, int lane) {
  const WholeTiles<kSpec.attention.head_dim> tiles(p);
  const auto place = static_cast<int>(number % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  const plan::Task task = tiles.task(number * static_cast<int>(gridDim.x) + place);
  send_record<kSpec>(shared, number, task, lane);
}

}  // namespace hpcattn
