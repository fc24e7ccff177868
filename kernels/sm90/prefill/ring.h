// SPDX-License-Identifier: Apache-2.0
// What passes between the warps that load and those that compute: slots of K and V, and places for
// tasks. A slot or place is full or empty by turns, and each turn has a barrier.
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.h"
#include "kernels/ptx/copy.h"
#include "kernels/sm90/prefill/config.h"

namespace hpcattn {

/// Items are counted from the kernel's start over all of its tasks: item i has the place i %
/// kPlaces in round i / kPlaces.
template <int kPlaces>
class Turns {
 public:
  explicit Turns(std::uint32_t barriers) : barriers_(barriers) {}

  /// One thread, before the first use: how many arrive to say that a place is full, and empty.
  void init(int fillers, int readers) const {
    for (int place = 0; place < kPlaces; ++place) {
      ptx::mbarrier_init(full(place), fillers);
      ptx::mbarrier_init(empty(place), readers);
    }
  }

  std::uint32_t full_barrier(int item) const { return full(item % kPlaces); }
  void wait_full(int item) const { ptx::mbarrier_wait(full(item % kPlaces), item / kPlaces % 2); }

  /// The place of an item may be written.
  void wait_empty(int item) const {
    if (item >= kPlaces) ptx::mbarrier_wait(empty(item % kPlaces), (item / kPlaces - 1) % 2);
  }

  /// All lanes of a warp are done with an item, or have filled its place.
  void release(int item, int lane) const { arrive(empty(item % kPlaces), lane); }
  void fill(int item, int lane) const { arrive(full(item % kPlaces), lane); }

 private:
  static void arrive(std::uint32_t barrier, int lane) {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  std::uint32_t full(int place) const { return barriers_ + place * 8; }
  std::uint32_t empty(int place) const { return barriers_ + (kPlaces + place) * 8; }

  std::uint32_t barriers_;
};

/// In the place of a task: there are no more.
inline constexpr int kNoRequest = -1;

/// The parts of shared memory (config.h).
template <PrefillSpec kSpec>
struct PrefillShared {
  static constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  static constexpr int kComputingWarps = kLayout.warpgroups * 4;
  static constexpr int kQueryWarps = 3;
  using Slots = Turns<kLayout.slots>;
  using Places = Turns<PrefillLayout::kPlaces>;
  char* base;

  std::uint32_t address(int offset) const { return ptx::shared_address(base) + offset; }
  Slots slots() const { return Slots(address(kLayout.barriers_offset)); }
  Places places() const {
    return Places(address(kLayout.barriers_offset + 2 * PrefillLayout::kMaxSlots * 8));
  }

  /// One thread, before the first use.
  void init() const {
    slots().init(1, kComputingWarps);  // full: who starts the copies, and their bytes
    places().init(kQueryWarps, kComputingWarps);
    ptx::fence_mbarrier_init();
  }

  std::uint32_t slot_address(int item) const {
    return address(kLayout.slots_offset) + item % kLayout.slots * kLayout.slot_bytes;
  }
  /// Bit i: box i of the tile was copied. Of K's slot.
  std::uint32_t& boxes(int item) const {
    return reinterpret_cast<std::uint32_t*>(base + kLayout.boxes_offset)[item % kLayout.slots];
  }
  std::uint32_t q_address(int place) const { return address(place * kLayout.q_bytes); }
  plan::Task& task(int place) const {
    return reinterpret_cast<plan::Task*>(base + kLayout.tasks_offset)[place];
  }
  RowInfo* infos() const { return reinterpret_cast<RowInfo*>(base + kLayout.infos_offset); }
  int* flag() const { return reinterpret_cast<int*>(base + kLayout.flag_offset); }
};

}  // namespace hpcattn
