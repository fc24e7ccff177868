// SPDX-License-Identifier: Apache-2.0
// What the emulated driver writes into the 128 bytes of a CUtensorMap, and the copy of a box by it.
#pragma once

#include <cstdint>

namespace hpcattn::emulator {

struct TensorMapFields {
  char* address;
  std::uint64_t strides[4];  // bytes, of all dims but the innermost
  std::uint32_t sizes[5];
  std::uint16_t box[5];
  std::uint8_t rank;
  std::uint8_t element_bytes;
  std::uint8_t swizzle_bytes;  // 0: none, 32, 64, 128
};
static_assert(sizeof(TensorMapFields) <= 128);

}  // namespace hpcattn::emulator
