// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/barrier.h. A barrier's eight bytes of shared memory hold what it counts.
#pragma once

#include "shared_memory.h"

namespace hpcattn::emulator {

struct MemoryBarrier {
  static constexpr std::uint16_t kMagic = 0xba44;
  std::uint16_t magic;
  std::uint8_t phase;
  std::uint8_t arrivals;  // of each phase
  std::int32_t counts;    // arrivals still to come, in the upper byte; bytes still to come

  std::int32_t to_come() const { return counts >> 24; }
  std::int32_t bytes() const { return (counts << 8) >> 8; }
  void set(std::int32_t to_come, std::int32_t bytes) {
    counts = to_come << 24 | (bytes & 0xffffff);
  }
  void change(std::int32_t arrived, std::int32_t more_bytes) {
    const std::int32_t left = to_come() - arrived;
    const std::int32_t bytes_left = bytes() + more_bytes;
    if (left < 0) machine->fail("more arrivals at a memory barrier than its %d", arrivals);
    set(left, bytes_left);
    if (left > 0 || bytes_left != 0) return;
    phase ^= 1;
    set(arrivals, 0);
  }
};
static_assert(sizeof(MemoryBarrier) == 8);

inline MemoryBarrier& barrier_at(std::uint32_t address) {
  auto& barrier = *reinterpret_cast<MemoryBarrier*>(shared_at(address, 8, 8));
  if (barrier.magic != MemoryBarrier::kMagic) {
    machine->fail("there is no memory barrier at %u of shared memory", address - kSharedBase);
  }
  return barrier;
}

}  // namespace hpcattn::emulator

namespace hpcattn::ptx {

inline void mbarrier_init(std::uint32_t barrier, int arrivals) {
  using emulator::MemoryBarrier;
  if (arrivals < 1 || arrivals > 127) emulator::machine->fail("a barrier of %d", arrivals);
  auto* const at = reinterpret_cast<MemoryBarrier*>(emulator::shared_at(barrier, 8, 8));
  *at = {MemoryBarrier::kMagic, 0, static_cast<std::uint8_t>(arrivals), 0};
  at->set(arrivals, 0);
}

inline void fence_mbarrier_init() {}

inline void mbarrier_arrive(std::uint32_t barrier) { emulator::barrier_at(barrier).change(1, 0); }

inline void mbarrier_arrive_expect(std::uint32_t barrier, int bytes) {
  emulator::barrier_at(barrier).change(1, bytes);
}

inline void mbarrier_wait(std::uint32_t barrier, int parity) {
  emulator::machine->wait_until(
      "a memory barrier",
      [](const void* at, int phase) {
        return static_cast<const emulator::MemoryBarrier*>(at)->phase != phase;
      },
      &emulator::barrier_at(barrier), parity);
}

inline void fence_async_shared() {}

inline void barrier_sync(int id, int threads) { emulator::machine->barrier(id, threads, false); }
inline bool barrier_any(int id, int threads, bool vote) {
  return emulator::machine->barrier(id, threads, vote) != 0;
}
inline void barrier_arrive(int id, int threads) { emulator::machine->barrier_arrive(id, threads); }

}  // namespace hpcattn::ptx
