// SPDX-License-Identifier: Apache-2.0
// Copies of boxes of a tensor by the copy engine (PTX ISA 9.7.9.27, cp.async.bulk.tensor; sm_90
// on).
#pragma once

#include <cstdint>

namespace hpcattn {

/// A CUtensorMap: where a tensor lies, its strides, and the box that one copy takes.
struct alignas(64) TensorMap {
  std::uint64_t words[16];
};

namespace ptx {

/// The box at these coordinates, innermost first, to shared memory; `barrier` counts its bytes.
inline void tensor_copy_5d(std::uint32_t shared, const TensorMap& map, std::uint32_t barrier,
                           int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];\n" ::"r"(shared),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
      "r"(c4)
      : "memory");
}

}  // namespace ptx
}  // namespace hpcattn
