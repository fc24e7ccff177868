// SPDX-License-Identifier: Apache-2.0
// What passes between the warps that load, those that transpose and those that compute: K and V, q,
// V transposed, records of tasks. Each has some places, which are full or empty by turns.
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.h"
#include "kernels/ptx/copy.h"
#include "kernels/sm90/prefill/config.h"
#include "kernels/sm90/turns.h"

namespace hpcattn {

/// The parts of shared memory (config.h).
template <PrefillSpec kSpec>
struct PrefillShared {
  static constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  static constexpr int kComputingWarps = kLayout.warpgroups * 4;
  static constexpr int kQueryWarps = 3;
  static constexpr int kTransposingWarps = kLayout.transposes ? 4 : 0;
  using Slots = Turns<kLayout.slots>;
  using Queries = Turns<kLayout.queries>;
  using Records = Turns<PrefillLayout::kRecords>;
  using Transposed = Turns<PrefillLayout::kMaxValues>;
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
  Transposed transposed() const {
    constexpr int kBefore =
        PrefillLayout::kMaxSlots + PrefillLayout::kMaxQueries + PrefillLayout::kRecords;
    return Transposed(address(kLayout.barriers_offset + 2 * kBefore * 8));
  }
  /// V as the products take it: transposed, or as it lies in its slot.
  auto values() const {
    if constexpr (kLayout.transposes) {
      return transposed();
    } else {
      return slots();
    }
  }

  /// One thread, before the first use. `planned`: who loads K and V sends the records, else it
  /// reads them too.
  void init(bool planned) const {
    slots().init_copied(kComputingWarps);
    queries().init(kQueryWarps, kComputingWarps);
    constexpr int kReaders = kQueryWarps + kComputingWarps + kTransposingWarps;
    records().init(1, planned ? kReaders : kReaders + 1);
    if constexpr (kLayout.transposes) transposed().init(kTransposingWarps, kComputingWarps);
    ptx::fence_mbarrier_init();
  }

  std::uint32_t slot_address(int item) const {
    return address(kLayout.slots_offset) + Slots::place(item) * kLayout.slot_bytes;
  }
  std::uint32_t transposed_address(int tile) const {
    return address(kLayout.values_offset) + Transposed::place(tile) * kLayout.slot_bytes;
  }
  std::uint32_t value_address(int item) const {
    return kLayout.transposes ? transposed_address(item) : slot_address(item);
  }
  /// Bit i: box i of the tile was copied.
  std::uint32_t& boxes(int item) const {
    return reinterpret_cast<std::uint32_t*>(base + kLayout.boxes_offset)[Slots::place(item)];
  }
  /// Of a cta's tasks the one of this number.
  char* q(int number) const { return base + Queries::place(number) * kLayout.q_bytes; }
  plan::Task& record(int number) const {
    return reinterpret_cast<plan::Task*>(base + kLayout.tasks_offset)[Records::place(number)];
  }
  int* flag() const { return reinterpret_cast<int*>(base + kLayout.flag_offset); }
};

}  // namespace hpcattn
