// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/registers.h: there are as many as the compiler wants.
#pragma once

namespace hpcattn::ptx {

template <int kRegisters>
void give_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
void take_registers() {
  give_registers<kRegisters>();
}

}  // namespace hpcattn::ptx
