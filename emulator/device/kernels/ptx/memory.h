// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/memory.h.
#pragma once

#include "shared_memory.h"

namespace hpcattn::ptx {

inline int4 load_anew(const std::int32_t* from) {
  int4 words;
  std::memcpy(&words, emulator::aligned(from, 16), 16);
  return words;
}

inline void fetch_into_l2(const void*) {}

inline void clear_shared_16(std::uint32_t shared) {
  std::memset(emulator::shared_at(shared, 16, 16), 0, 16);
}

inline uint4 load_shared_16(std::uint32_t shared) {
  uint4 words;
  std::memcpy(&words, emulator::shared_at(shared, 16, 16), 16);
  return words;
}

inline void store_shared(std::uint32_t shared, std::uint32_t word) {
  std::memcpy(emulator::shared_at(shared, 4, 4), &word, 4);
}

}  // namespace hpcattn::ptx
