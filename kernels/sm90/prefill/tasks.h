// SPDX-License-Identifier: Apache-2.0
// The tasks of a cta: one warp goes through them and sends their records to the others.
#pragma once

#include "kernels/generic/attention/load_task.h"
#include "kernels/ptx/thread.h"
#include "kernels/sm90/prefill/ring.h"

namespace hpcattn {

/// Calls body(task) for each task of this cta, which has the shares of all of the plan's workers on
/// a multiprocessor. By the warp of thread 0.
template <typename Body>
inline void for_each_task(const AttentionParams& p, const Body& body) {
  const auto worker_begin = [&](int cta) {
    return p.plan[p.layout.worker_begin() + cta * plan::kCtasPerSm];
  };
  const int end = worker_begin(ptx::cta_index_here() + 1);
  for (int i = worker_begin(ptx::cta_index_here()); i < end; ++i) {
    const plan::Task task = load_task(p, i);
    if (task_fits(p, task)) body(task);
  }
}

/// The task of this number, or that there is none, to all that wait for it. By all lanes of one
/// warp.
template <PrefillSpec kSpec>
inline void send_record(const PrefillShared<kSpec>& shared, int number, const plan::Task& task,
                        int lane) {
  shared.records().wait_empty(number);
  if (lane == 0) shared.record(number) = task;
  shared.records().fill(number, lane);
}
template <PrefillSpec kSpec>
inline void send_end(const PrefillShared<kSpec>& shared, int number, int lane) {
  plan::Task none;
  none.request = kNoRequest;
  send_record<kSpec>(shared, number, none, lane);
}

}  // namespace hpcattn
