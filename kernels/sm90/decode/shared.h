// SPDX-License-Identifier: Apache-2.0
// What passes between the warp that loads and the four that compute, and among these: slots of K
// and V, passes, q, P, maxima.
#pragma once

#include <cstdint>

#include "kernels/ptx/copy.h"
#include "kernels/sm90/decode/config.h"
#include "kernels/sm90/decode/pass.h"
#include "kernels/sm90/turns.h"

namespace hpcattn {

/// The parts of shared memory (config.h).
template <DecodeSpec kSpec>
struct DecodeShared {
  static constexpr DecodeLayout kLayout = decode_layout(kSpec);
  static_assert(kLayout.slots >= 3);
  /// Of K and V: K of a tile comes before V of the one before.
  using Slots = Turns<kLayout.slots>;
  using Passes = Turns<DecodeLayout::kQueuedPasses>;
  char* base;

  std::uint32_t address(int offset) const { return ptx::shared_address(base) + offset; }
  Slots slots() const { return Slots(address(kLayout.barriers_offset)); }
  Passes passes() const {
    return Passes(address(kLayout.barriers_offset + 2 * DecodeLayout::kMaxSlots * 8));
  }

  /// One thread, before the first use.
  void init() const {
    slots().init_copied(kAttentionWarps);
    passes().init(1, kAttentionWarps);
    ptx::fence_mbarrier_init();
  }

  std::uint32_t slot_address(int item) const {
    return address(kLayout.slots_offset) + Slots::place(item) * kLayout.slot_bytes;
  }
  /// Bit i: page i of the tile was copied. Of K's slot.
  std::uint32_t& boxes(int item) const {
    return reinterpret_cast<std::uint32_t*>(base + kLayout.boxes_offset)[Slots::place(item)];
  }
  /// Of the cta's passes the one of this number.
  Pass& pass(int number) const {
    return reinterpret_cast<Pass*>(base + kLayout.passes_offset)[Passes::place(number)];
  }
  /// By all lanes of one warp.
  void send(int number, const Pass& sent, int lane) const {
    passes().wait_empty(number);
    if (lane == 0) pass(number) = sent;
    passes().fill(number);
  }

  RowInfo* infos() const { return reinterpret_cast<RowInfo*>(base); }
  float* of_warp(int warp) const {
    return reinterpret_cast<float*>(base + kLayout.of_warps_offset) + warp * kSpec.rows;
  }
  float* references() const { return reinterpret_cast<float*>(base + kLayout.of_rows_offset); }
  /// This cta's partial was the last of its combine.
  int* last_arrived() const { return reinterpret_cast<int*>(base + kLayout.flag_offset); }
  char* q() const { return base + kLayout.q_offset; }
  char* p() const { return base + kLayout.p_offset; }
  float* staged(int row) const {
    return reinterpret_cast<float*>(p()) + row * kLayout.staged_stride;
  }
};

}  // namespace hpcattn
