// SPDX-License-Identifier: Apache-2.0
// The ring of slots between the copy engine and the four warps that compute.
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.h"
#include "kernels/ptx/copy.h"
#include "kernels/sm90/decode/config.h"

namespace hpcattn {

/// Items are K and V of a tile by turns, counted from the kernel's start over all of its tasks:
/// item i lies in slot i % slots in round i / slots.
template <DecodeSpec kSpec>
class DecodeRing {
 public:
  static constexpr DecodeLayout kLayout = decode_layout(kSpec);
  static constexpr int kSlots = kLayout.slots;
  static_assert(kSlots >= 3);

  explicit DecodeRing(std::uint32_t shared)
      : barriers_(shared + kLayout.barriers_offset), slots_(shared + kLayout.slots_offset) {}

  /// One thread, before the first use. full: the starter and its bytes arrive; empty: each warp
  /// that computes.
  void init() const {
    for (int slot = 0; slot < kSlots; ++slot) {
      ptx::mbarrier_init(full(slot), 1);
      ptx::mbarrier_init(empty(slot), kAttentionWarps);
    }
  }

  std::uint32_t slot_address(int item) const { return slots_ + item % kSlots * kLayout.slot_bytes; }
  std::uint32_t full_barrier(int item) const { return full(item % kSlots); }

  void wait_full(int item) const { ptx::mbarrier_wait(full(item % kSlots), item / kSlots % 2); }

  /// All lanes of a warp are done with an item.
  void release(int item, int lane) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(empty(item % kSlots));
  }

  /// The slot of an item may be written.
  void wait_empty(int item) const {
    if (item >= kSlots) ptx::mbarrier_wait(empty(item % kSlots), (item / kSlots - 1) % 2);
  }

 private:
  std::uint32_t full(int slot) const { return barriers_ + slot * 8; }
  std::uint32_t empty(int slot) const { return barriers_ + (DecodeLayout::kMaxSlots + slot) * 8; }

  std::uint32_t barriers_;
  std::uint32_t slots_;
};

}  // namespace hpcattn
