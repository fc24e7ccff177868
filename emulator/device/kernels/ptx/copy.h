// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/copy.h: a copy happens when it is waited for, and until then there is poison.
#pragma once

#include "shared_memory.h"

namespace hpcattn::ptx {

inline std::uint32_t shared_address(const void* pointer) {
  return emulator::shared_address_of(pointer);
}

inline void cp_async_16(std::uint32_t shared, const void* global, bool valid) {
  char* const to = emulator::shared_at(shared, 16, 16);
  const void* const from =
      valid ? emulator::aligned(static_cast<const char*>(global), 16) : nullptr;
  std::memset(to, emulator::kPoison, 16);
  emulator::machine->start_copy([to, from] {
    if (from == nullptr) {
      std::memset(to, 0, 16);
    } else {
      std::memcpy(to, from, 16);
    }
  });
}

inline void cp_async_commit() { emulator::machine->close_group(); }

template <int kPending>
inline void cp_async_wait() {
  emulator::machine->wait_for_groups(kPending);
}

}  // namespace hpcattn::ptx
