// SPDX-License-Identifier: Apache-2.0
// A worker's tasks, as all of its warps go through them.
#pragma once

#include "kernels/generic/attention/load_task.h"
#include "kernels/ptx/thread.h"
#include "kernels/sm90/decode/config.h"

namespace hpcattn {

/// Tiles of a task's KV range.
template <int kTileKv>
struct TileRange {
  int begin;
  int end;
  explicit TileRange(const plan::Task& task)
      : begin(task.kv_begin / kTileKv),
        end(task.kv_end > task.kv_begin ? (task.kv_end + kTileKv - 1) / kTileKv : begin) {}
};

/// A pass over K and V: kRows rows of a task, or what it has.
struct Pass {
  int task;
  int slice;
};

/// Read anew at each call, as load_task().
template <int kRows>
inline plan::Task load_pass(const AttentionParams& p, Pass pass) {
  plan::Task task = load_task(p, pass.task);
  const int skipped = pass.slice * kRows;
  task.row_begin += skipped;
  task.row_end = min(task.row_begin + kRows, task.row_end);
  if (task.partial >= 0) task.partial += skipped;
  return task;
}

/// Calls body(pass) for each pass that this cta's worker has to make. What is not the loop's own is
/// read anew at each turn: a pass leaves no registers for it.
template <int kRows, typename Body>
inline void for_each_pass(const AttentionParams& p, const Body& body) {
  const auto worker_begin = [&](int after) {
    return p.plan[p.layout.worker_begin() + ptx::cta_index_here() + after];
  };
  const auto num_slices = [&](int i) {
    const plan::Task task = load_task(p, i);
    return (task.row_end - task.row_begin + kRows - 1) / kRows;
  };
  for (int i = worker_begin(0); i < worker_begin(1); ++i) {
    if (!task_fits(p, load_task(p, i))) continue;
    for (int slice = 0; slice < num_slices(i); ++slice) body(Pass{i, slice});
  }
}

}  // namespace hpcattn
