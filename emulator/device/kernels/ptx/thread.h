// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/thread.h.
#pragma once

#include <cstdint>

namespace hpcattn::ptx {

inline int thread_index_here() { return static_cast<int>(threadIdx.x); }
inline int cta_index_here() { return static_cast<int>(blockIdx.x); }

inline bool elected_lane() { return threadIdx.x % 32 == 0; }

inline std::uint32_t word_here(std::uint32_t word) { return word; }

inline int warp_uniform(int value) {
  const int uniform = __shfl_sync(0xffffffffU, value, 0);
  if (uniform != value)
    emulator::machine->fail("%d and %d in a warp, where all are alike", uniform, value);
  return value;
}

}  // namespace hpcattn::ptx
