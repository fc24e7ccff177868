// SPDX-License-Identifier: Apache-2.0
// Accesses of memory that the compiler must leave as they are (PTX ISA 9.7.9, ld and st).
#pragma once

#include <cstdint>

namespace hpcattn::ptx {

/// Four words of global memory, read at each call: what was read before is not kept in registers.
inline int4 load_anew(const std::int32_t* from) {
  int4 words;
  asm volatile("ld.global.v4.s32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}

/// The line of global memory that `from` lies in is on its way to the L2 cache (PTX ISA 9.7.9,
/// prefetch).
inline void fetch_into_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from));
}

/// 16 bytes of zeros to shared memory.
inline void clear_shared_16(std::uint32_t shared) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n" ::"r"(shared), "r"(0) : "memory");
}

/// 16 bytes of shared memory.
inline uint4 load_shared_16(std::uint32_t shared) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(shared)
               : "memory");
  return words;
}

/// A word to shared memory.
inline void store_shared(std::uint32_t shared, std::uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(shared), "r"(word) : "memory");
}

}  // namespace hpcattn::ptx
