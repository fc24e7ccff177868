// SPDX-License-Identifier: Apache-2.0
// Tensor maps of the emulated driver, with what the real one refuses (CUDA driver API,
// cuTensorMapEncodeTiled).
#include "emulator/device/tensor_map.h"

#include <cstring>

using hpcattn::emulator::TensorMapFields;

namespace {

constexpr int kInvalidValue = 1;  // CUDA_ERROR_INVALID_VALUE

}  // namespace

extern "C" int cuTensorMapEncodeTiled(void* map, int data_type, unsigned rank, void* address,
                                      const std::uint64_t* sizes, const std::uint64_t* strides,
                                      const std::uint32_t* box,
                                      const std::uint32_t* element_strides, int, int swizzle, int,
                                      int) {
  TensorMapFields fields{};
  fields.address = static_cast<char*>(address);
  fields.rank = static_cast<std::uint8_t>(rank);
  fields.element_bytes = data_type == 0 ? 1 : 2;
  fields.swizzle_bytes = swizzle == 0 ? 0 : static_cast<std::uint8_t>(16 << swizzle);
  if (rank < 1 || rank > 5 || data_type < 0 || data_type > 1) return kInvalidValue;
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return kInvalidValue;
  if (box[0] * fields.element_bytes % 16 != 0) return kInvalidValue;
  if (swizzle != 0 && box[0] * fields.element_bytes > fields.swizzle_bytes) return kInvalidValue;
  for (unsigned dim = 0; dim < rank; ++dim) {
    if (sizes[dim] == 0 || sizes[dim] > UINT32_MAX) return kInvalidValue;
    if (box[dim] == 0 || box[dim] > 256 || element_strides[dim] != 1) return kInvalidValue;
    fields.sizes[dim] = static_cast<std::uint32_t>(sizes[dim]);
    fields.box[dim] = static_cast<std::uint16_t>(box[dim]);
    if (dim + 1 == rank) continue;
    if (strides[dim] % 16 != 0 || strides[dim] >= std::uint64_t{1} << 40) return kInvalidValue;
    fields.strides[dim] = strides[dim];
  }
  std::memcpy(map, &fields, sizeof(fields));
  return 0;
}
