// SPDX-License-Identifier: Apache-2.0
// A pass over K and V: so many rows of a task as one takes, or what it has. Plain C++, that the
// host tests.
#pragma once

#include "kernels/sm90/decode/config.h"

namespace hpcattn {

struct Pass {
  plan::Task task;     // its rows and its partial are the pass's
  int is_last = 0;     // the task's last: its partial result is whole then
  int item = 0;        // of the ring: K of the first tile
  int unused[2] = {};  // sent in 16-byte words

  static constexpr int kEnd = -1;
  /// No more passes.
  static constexpr Pass end() {
    Pass pass{};
    pass.task.request = kEnd;
    return pass;
  }
  constexpr bool is_end() const { return task.request == kEnd; }
};

static_assert(sizeof(Pass) == DecodeLayout::kPassBytes);

/// Pass `slice` of a task in passes of kRows rows.
template <int kRows>
constexpr Pass pass_of(const plan::Task& task, int slice) {
  Pass pass{task};
  const int skipped = slice * kRows;
  pass.task.row_begin += skipped;
  if (pass.task.row_begin + kRows < task.row_end) pass.task.row_end = pass.task.row_begin + kRows;
  if (task.partial >= 0) pass.task.partial += skipped;
  pass.is_last = pass.task.row_end == task.row_end ? 1 : 0;
  return pass;
}

/// Tiles of a task's KV range.
template <int kTileKv>
struct TileRange {
  int begin;
  int end;
  constexpr explicit TileRange(const plan::Task& task)
      : begin(task.kv_begin / kTileKv),
        end(task.kv_end > task.kv_begin ? (task.kv_end + kTileKv - 1) / kTileKv : begin) {}
};

}  // namespace hpcattn
