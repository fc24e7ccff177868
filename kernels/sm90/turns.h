// SPDX-License-Identifier: Apache-2.0
// Places in shared memory that some warps fill and others empty, by turns; each turn of a place has
// a barrier. A ring of slots, a queue of records.
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.h"
#include "kernels/ptx/thread.h"

namespace hpcattn {

/// Lanes of a warp that say for it that a place is full, or empty. One is enough, but racecheck
/// does not follow what other lanes have done through __syncwarp to it.
#ifdef HPCATTN_SANITIZER
inline constexpr int kArrivingLanes = 32;
#else
inline constexpr int kArrivingLanes = 1;
#endif

/// Items are counted from the kernel's start over all of its tasks: item i has the place i %
/// kPlaces in round i / kPlaces.
template <int kPlaces>
class Turns {
 public:
  explicit Turns(std::uint32_t barriers) : barriers_(barriers) {}

  /// One thread, before the first use: how many warps fill a place, and read it.
  void init(int fillers, int readers) const {
    init_arrivals(fillers * kArrivingLanes, readers * kArrivingLanes);
  }
  /// ... whose places the copy engine fills: who starts the copies arrives once, and their bytes.
  void init_copied(int readers) const { init_arrivals(1, readers * kArrivingLanes); }

  static constexpr int place(int item) {
    // Of unsigned numbers this takes half as many instructions.
    return static_cast<int>(static_cast<unsigned>(item) % kPlaces);
  }

  std::uint32_t full_barrier(int item) const { return full(place(item)); }
  void wait_full(int item) const { ptx::mbarrier_wait(full(place(item)), round(item) % 2); }

  /// The place of an item may be written.
  void wait_empty(int item) const {
    if (item >= kPlaces) ptx::mbarrier_wait(empty(place(item)), (round(item) - 1) % 2);
  }

  /// All lanes of a warp are done with an item, or have filled its place.
  void release(int item) const { release_place(place(item)); }
  void release_place(int at) const { arrive(empty(at)); }
  void fill(int item) const { arrive(full(place(item))); }

 private:
  static constexpr unsigned round(int item) { return static_cast<unsigned>(item) / kPlaces; }
  void init_arrivals(int to_fill, int to_empty) const {
    for (int place = 0; place < kPlaces; ++place) {
      ptx::mbarrier_init(full(place), to_fill);
      ptx::mbarrier_init(empty(place), to_empty);
    }
  }
  static void arrive(std::uint32_t barrier) {
    __syncwarp();
    if (kArrivingLanes == 32 || ptx::elected_lane()) ptx::mbarrier_arrive(barrier);
  }
  std::uint32_t full(int place) const { return barriers_ + place * 8; }
  std::uint32_t empty(int place) const { return barriers_ + (kPlaces + place) * 8; }

  std::uint32_t barriers_;
};

}  // namespace hpcattn
