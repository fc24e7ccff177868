// SPDX-License-Identifier: Apache-2.0
#include "src/backend/fill.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/cuda/device.h"

namespace hpcattn {
namespace {

void fill_bytes(const Tensor& tensor, const void* element, std::size_t bytes) {
  if (tensor.num_elements() == 0) return;
  if (tensor.rank() == 0) {
    std::memcpy(tensor.data(), element, bytes);
    return;
  }
  if (tensor.rank() > 1) {
    for (std::int64_t i = 0; i < tensor.size(0); ++i)
      fill_bytes(tensor.select(0, i), element, bytes);
    return;
  }
  auto* data = static_cast<std::byte*>(tensor.data());
  for (std::int64_t i = 0; i < tensor.size(0); ++i) {
    std::memcpy(data + i * tensor.stride(0) * std::int64_t(bytes), element, bytes);
  }
}

}  // namespace

void fill_zero(const Tensor& tensor, const Execution& execution) {
  if (tensor.device().type == DeviceType::kCuda) return cuda::fill_pattern(tensor, 0, execution);
  const std::int64_t zero = 0;  // as many zero bytes as the largest element has
  fill_bytes(tensor, &zero, std::size_t(size_bytes(tensor.dtype())));
}

void fill_float(const Tensor& tensor, float value, const Execution& execution) {
  if (tensor.device().type == DeviceType::kCuda) {
    return cuda::fill_pattern(tensor, std::bit_cast<std::uint32_t>(value), execution);
  }
  fill_bytes(tensor, &value, sizeof(value));
}

}  // namespace hpcattn
