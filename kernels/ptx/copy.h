// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies from global to shared memory (PTX ISA 9.7.9.25, cp.async; sm_80 on).
#pragma once

#include <cstdint>

namespace hpcattn::ptx {

/// Address of shared memory as instructions take it.
inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes, past the first cache; zeros, without reading `global`, where `valid` is false.
inline void cp_async_16(std::uint32_t shared, const void* global, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared),
               "l"(global), "r"(source_bytes)
               : "memory");
}

/// Closes a group of copies, also an empty one.
inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

/// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace hpcattn::ptx
