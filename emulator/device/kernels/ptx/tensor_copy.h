// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/tensor_copy.h: the engine copies at any moment, and until then there is poison.
#pragma once

#include "kernels/ptx/barrier.h"
#include "tensor_map.h"

namespace hpcattn {

struct alignas(64) TensorMap {
  std::uint64_t words[16];
};

namespace emulator {

inline std::size_t box_bytes(const TensorMapFields& map) {
  std::size_t bytes = map.element_bytes;
  for (int dim = 0; dim < map.rank; ++dim) bytes *= map.box[dim];
  return bytes;
}

/// Row by row of the innermost dim; what lies outside of the tensor becomes zeros. The units of 16
/// bytes are permuted by the address in shared memory, whose 1024 byte block they stay in.
inline void copy_box(const TensorMapFields& map, std::uint32_t shared, const int* at) {
  const std::size_t row_bytes = std::size_t{map.box[0]} * map.element_bytes;
  const std::size_t rows = box_bytes(map) / row_bytes;
  for (std::size_t row = 0; row < rows; ++row) {
    const char* from = map.address + std::int64_t{at[0]} * map.element_bytes;
    bool inside = true;
    std::size_t rest = row;
    for (int dim = 1; dim < map.rank; ++dim) {
      const std::int64_t index = at[dim] + static_cast<std::int64_t>(rest % map.box[dim]);
      rest /= map.box[dim];
      inside = inside && index >= 0 && index < map.sizes[dim];
      from += index * static_cast<std::int64_t>(map.strides[dim - 1]);
    }
    for (std::size_t byte = 0; byte < row_bytes; byte += 16) {
      std::uint32_t to = shared + static_cast<std::uint32_t>(row * row_bytes + byte);
      const std::uint32_t units = map.swizzle_bytes / 16;
      // The swizzle takes address bits 7 and up into bits 4 and up.
      if (units > 0) to ^= (to >> 7 & (units - 1)) << 4;
      const std::int64_t element = at[0] + static_cast<std::int64_t>(byte / map.element_bytes);
      char* const place = shared_at(to, 16, 16);
      if (inside && element >= 0 && element < map.sizes[0]) {
        std::memcpy(place, from + byte, 16);
      } else {
        std::memset(place, 0, 16);
      }
    }
  }
}

}  // namespace emulator

namespace ptx {

inline void tensor_copy_5d(std::uint32_t shared, const TensorMap& map, std::uint32_t barrier,
                           int c0, int c1, int c2, int c3, int c4) {
  emulator::TensorMapFields fields;
  std::memcpy(&fields, map.words, sizeof(fields));
  if (fields.rank != 5) emulator::machine->fail("a copy by a map of rank %d", fields.rank);
  const std::size_t bytes = emulator::box_bytes(fields);
  std::memset(emulator::shared_at(shared, bytes, 128), emulator::kPoison, bytes);
  emulator::barrier_at(barrier);
  emulator::machine->start_engine_copy([=] {
    const int at[5] = {c0, c1, c2, c3, c4};
    emulator::copy_box(fields, shared, at);
    emulator::barrier_at(barrier).change(0, -static_cast<int>(bytes));
  });
}

}  // namespace ptx
}  // namespace hpcattn
