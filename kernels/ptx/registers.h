// SPDX-License-Identifier: Apache-2.0
// How many registers a thread has (PTX ISA 9.7.19.5, setmaxnreg; sm_90a).
#pragma once

namespace hpcattn::ptx {

/// Registers of this warpgroup's threads from here on: fewer than they were launched
/// with, or more, once others have given theirs. A multiple of 8.
template <int kRegisters>
inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace hpcattn::ptx
