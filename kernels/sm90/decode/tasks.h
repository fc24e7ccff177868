// SPDX-License-Identifier: Apache-2.0
// Tasks on their way from the warp that claims them to the warps that compute: it runs ahead by a
// message or two, as by its copies.
#pragma once

#include "kernels/generic/attention/load_task.h"
#include "kernels/ptx/barrier.h"
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

/// A pass over K and V: so many rows of a task as one takes, or what it has.
struct Pass {
  plan::Task task;  // its rows and its partial are the pass's
  constexpr static int kEnd = -1;

  /// No more passes.
  static Pass end() {
    Pass pass{};
    pass.task.request = kEnd;
    return pass;
  }
  bool is_end() const { return task.request == kEnd; }
  /// The task's last: its partial result is whole then.
  bool is_last() const { return task.unused[0] != 0; }
};

/// Pass `slice` of a task in passes of kRows rows.
template <int kRows>
inline Pass pass_of(const plan::Task& task, int slice) {
  Pass pass{task};
  const int skipped = slice * kRows;
  pass.task.row_begin += skipped;
  pass.task.row_end = min(pass.task.row_begin + kRows, task.row_end);
  if (task.partial >= 0) pass.task.partial += skipped;
  pass.task.unused[0] = pass.task.row_end == task.row_end ? 1 : 0;
  return pass;
}

/// Passes in shared memory, by turns in one of two places.
template <DecodeSpec kSpec>
class PassQueue {
  static constexpr DecodeLayout kLayout = decode_layout(kSpec);
  static constexpr int kPlaces = DecodeLayout::kQueuedPasses;

 public:
  explicit PassQueue(char* shared)
      : passes_(reinterpret_cast<Pass*>(shared + kLayout.passes_offset)),
        barriers_(ptx::shared_address(shared) + kLayout.barriers_offset +
                  2 * DecodeLayout::kMaxSlots * 8) {}

  /// One thread, before the first use. full: the sender's lanes; empty: the warps that compute.
  void init() const {
    for (int place = 0; place < kPlaces; ++place) {
      ptx::mbarrier_init(full(place), 1);
      ptx::mbarrier_init(empty(place), kAttentionWarps);
    }
  }

  /// Pass number `i`, by all lanes of one warp.
  void send(int i, const Pass& pass, int lane) const {
    if (i >= kPlaces) ptx::mbarrier_wait(empty(i % kPlaces), (i / kPlaces - 1) % 2);
    if (lane == 0) {
      passes_[i % kPlaces] = pass;
      ptx::mbarrier_arrive(full(i % kPlaces));
    }
    __syncwarp();
  }

  const Pass& receive(int i) const {
    ptx::mbarrier_wait(full(i % kPlaces), i / kPlaces % 2);
    return passes_[i % kPlaces];
  }

  /// All lanes of a warp are done with a pass.
  void release(int i, int lane) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(empty(i % kPlaces));
  }

 private:
  std::uint32_t full(int place) const { return barriers_ + place * 8; }
  std::uint32_t empty(int place) const { return barriers_ + (kPlaces + place) * 8; }

  Pass* passes_;
  std::uint32_t barriers_;
};

}  // namespace hpcattn
