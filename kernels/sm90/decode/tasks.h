// SPDX-License-Identifier: Apache-2.0
// A worker's tasks, as all of its warps go through them.
#pragma once

#include "kernels/generic/attention/load_task.h"
#include "kernels/sm90/decode/config.h"

namespace hpcattn {

/// Tiles of a task's KV range.
struct TileRange {
  int begin;
  int end;
  explicit TileRange(const plan::Task& task)
      : begin(task.kv_begin / DecodeLayout::kTileKv),
        end(task.kv_end > task.kv_begin
                ? (task.kv_end + DecodeLayout::kTileKv - 1) / DecodeLayout::kTileKv
                : begin) {}
};

/// A pass over K and V: kDecodeRows rows of a task, or what it has.
struct Pass {
  int task;
  int slice;
  bool last;  // of its task
};

/// Read anew at each call, as load_task().
inline plan::Task load_pass(const AttentionParams& p, Pass pass) {
  plan::Task task = load_task(p, pass.task);
  const int skipped = pass.slice * kDecodeRows;
  task.row_begin += skipped;
  task.row_end = min(task.row_begin + kDecodeRows, task.row_end);
  if (task.partial >= 0) task.partial += skipped;
  return task;
}

/// Calls body(pass) for each pass that this cta's worker has to make.
template <typename Body>
inline void for_each_pass(const AttentionParams& p, const Body& body) {
  const std::int32_t* const begin = p.plan + p.layout.worker_begin() + blockIdx.x;
  for (int i = begin[0]; i < begin[1]; ++i) {
    int slices = 0;
    {
      const plan::Task task = load_task(p, i);
      if (task_fits(p, task)) {
        slices = (task.row_end - task.row_begin + kDecodeRows - 1) / kDecodeRows;
      }
    }
    for (int slice = 0; slice < slices; ++slice) body(Pass{i, slice, slice + 1 == slices});
  }
}

}  // namespace hpcattn
