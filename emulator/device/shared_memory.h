// SPDX-License-Identifier: Apache-2.0
// Shared memory by the 32-bit addresses of instructions, with the checks that hardware makes of
// bounds and alignment.
#pragma once

#include <cstdint>

#include "machine.h"

namespace hpcattn::emulator {

/// Not 0, so that a null address is found out.
inline constexpr std::uint32_t kSharedBase = 1024;

/// What is read too early is not a number, in every dtype.
inline constexpr unsigned char kPoison = 0xff;

inline std::uint32_t shared_address_of(const void* pointer) {
  const auto offset = static_cast<const char*>(pointer) - machine->shared;
  if (offset < 0 || offset > static_cast<std::ptrdiff_t>(machine->shared_bytes)) {
    machine->fail("the address of shared memory of %p, which is outside of it", pointer);
  }
  return kSharedBase + static_cast<std::uint32_t>(offset);
}

inline char* shared_at(std::uint32_t address, std::size_t bytes, std::size_t alignment) {
  const std::int64_t offset = std::int64_t{address} - kSharedBase;
  if (offset < 0 || offset + static_cast<std::int64_t>(bytes) >
                        static_cast<std::int64_t>(machine->shared_bytes)) {
    machine->fail("%zu bytes at %lld of shared memory, which has %zu", bytes,
                  static_cast<long long>(offset), machine->shared_bytes);
  }
  if (offset % static_cast<std::int64_t>(alignment) != 0) {
    machine->fail("an address of shared memory, %lld, that is no multiple of %zu",
                  static_cast<long long>(offset), alignment);
  }
  return machine->shared + offset;
}

template <typename T>
const T* aligned(const T* pointer, std::size_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    machine->fail("an access of %zu bytes at %p", alignment, static_cast<const void*>(pointer));
  }
  return pointer;
}

}  // namespace hpcattn::emulator
