// SPDX-License-Identifier: Apache-2.0
// What passes between the warps that load and those that compute: K and V, q, records of tasks.
// Each has some places, which are full or empty by turns, and each turn has a barrier.
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

/// In the record of a task: there are no more.
inline constexpr int kNoRequest = -1;

/// The parts of shared memory (config.h).
template <PrefillSpec kSpec>
struct PrefillShared {
  static constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  static constexpr int kComputingWarps = kLayout.warpgroups * 4;
  static constexpr int kQueryWarps = 3;
  using Slots = Turns<kLayout.slots>;
  using Queries = Turns<kLayout.queries>;
  using Records = Turns<PrefillLayout::kRecords>;
  char* base;

  std::uint32_t address(int offset) const { return ptx::shared_address(base) + offset; }
  Slots slots() const { return Slots(address(kLayout.barriers_offset)); }
  Queries queries() const {
    return Queries(address(kLayout.barriers_offset + 2 * PrefillLayout::kMaxSlots * 8));
  }
  Records records() const {
    constexpr int kBefore = PrefillLayout::kMaxSlots + PrefillLayout::kMaxQueries;
    return Records(address(kLayout.barriers_offset + 2 * kBefore * 8));
  }

  /// One thread, before the first use.
  void init() const {
    slots().init(1, kComputingWarps);  // full: who starts the copies, and their bytes
    queries().init(kQueryWarps, kComputingWarps);
    records().init(1, kQueryWarps + kComputingWarps);
    ptx::fence_mbarrier_init();
  }

  std::uint32_t slot_address(int item) const {
    return address(kLayout.slots_offset) + item % kLayout.slots * kLayout.slot_bytes;
  }
  /// Bit i: box i of the tile was copied. Of K's slot.
  std::uint32_t& boxes(int item) const {
    return reinterpret_cast<std::uint32_t*>(base + kLayout.boxes_offset)[item % kLayout.slots];
  }
  /// Of a cta's tasks the one of this number.
  char* q(int number) const { return base + number % kLayout.queries * kLayout.q_bytes; }
  plan::Task& record(int number) const {
    return reinterpret_cast<plan::Task*>(base +
                                         kLayout.tasks_offset)[number % PrefillLayout::kRecords];
  }
  int* flag() const { return reinterpret_cast<int*>(base + kLayout.flag_offset); }
};

}  // namespace hpcattn
