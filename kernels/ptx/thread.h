// SPDX-License-Identifier: Apache-2.0
// Who runs a line.
#pragma once

#include <cstdint>

namespace hpcattn::ptx {

/// threadIdx.x, read where it stands: what is computed from it is not kept in registers (or
/// spilled) across a loop that needs them all.
inline int thread_index_here() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(index));
  return index;
}

/// blockIdx.x, likewise.
inline int cta_index_here() {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;\n" : "=r"(index));
  return index;
}

/// `word`, of which nothing is known before: what is computed from it is not kept in registers
/// either, but `word` is.
inline std::uint32_t word_here(std::uint32_t word) {
  std::uint32_t same;
  asm volatile("mov.b32 %0, %1;\n" : "=r"(same) : "r"(word));
  return same;
}

#if __CUDA_ARCH__ >= 900
/// True in one lane of the warp, always the same; in fewer clocks than from threadIdx (PTX
/// ISA 9.7.13.13, elect.sync; sm_90 on).
inline bool elected_lane() {
  std::uint32_t elected;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nselp.u32 %0, 1, 0, one;\n}\n"
               : "=r"(elected));
  return elected != 0;
}
#endif

/// A value that all lanes have, told to the compiler: what follows from it is computed once for a
/// warp.
inline int warp_uniform(int value) { return __shfl_sync(0xffffffffU, value, 0); }

}  // namespace hpcattn::ptx
