// SPDX-License-Identifier: Apache-2.0
// Records of tasks, from the warp that claims them to the others.
#pragma once

#include "kernels/sm90/prefill/ring.h"

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

}  // namespace hpcattn
