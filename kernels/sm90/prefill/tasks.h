// SPDX-License-Identifier: Apache-2.0
// The tasks of a cta: one warp claims them and sends their records to the others.
#pragma once

#include "kernels/generic/attention/claims.h"
#include "kernels/generic/attention/load_task.h"
#include "kernels/sm90/prefill/ring.h"

namespace hpcattn {

/// Calls body(task, before_last) for each task of this cta, by all lanes of one warp. Before the
/// copies of a task's last tile comes before_last(), which claims the next: so that the claim is
/// there when they are under way, and no earlier than that.
template <typename Body>
inline void for_each_task(const AttentionParams& p, int lane, const Body& body) {
  int index = first_task(p);
  while (index != kNoTask) {
    Ticket ticket = 0;
    bool taken = false;
    const auto take = [&] {
      if (lane == 0) ticket = take_ticket(p);
      taken = true;
    };
    const plan::Task task = load_task(p, index);
    if (task_fits(p, task, lane == 0)) body(task, take);
    if (!taken) take();  // the task has no tile
    index = lane == 0 ? next_task(p, ticket) : 0;
    index = __shfl_sync(0xffffffffU, index, 0);
  }
}

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
