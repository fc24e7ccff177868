// SPDX-License-Identifier: Apache-2.0
// The tasks of a cta, as its warps go through them.
#pragma once

#include "kernels/generic/attention/load_task.h"
#include "kernels/ptx/thread.h"
#include "kernels/sm90/prefill/config.h"

namespace hpcattn {

/// Calls body(index) for each task of this cta, which has the shares of all of the plan's workers
/// on a multiprocessor. Each warp that loads goes through them on its own.
template <typename Body>
inline void for_each_task(const AttentionParams& p, const Body& body) {
  const auto worker_begin = [&](int cta) {
    return p.plan[p.layout.worker_begin() + cta * plan::kCtasPerSm];
  };
  for (int i = worker_begin(ptx::cta_index_here()); i < worker_begin(ptx::cta_index_here() + 1);
       ++i) {
    if (task_fits(p, load_task(p, i))) body(i);
  }
}

}  // namespace hpcattn
