// SPDX-License-Identifier: Apache-2.0
#include "src/backend/memory.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "src/cuda/buffer.h"
#include "src/cuda/device.h"

namespace hpcattn {
namespace {

constexpr std::size_t kAlignment = 256;

}  // namespace

std::shared_ptr<void> allocate(Device device, std::size_t bytes) {
  if (device.type == DeviceType::kCuda) return cuda::device_buffer(device.index, bytes);
  constexpr std::align_val_t kAligned{kAlignment};
  void* memory = ::operator new(std::max<std::size_t>(bytes, 1), kAligned);
  return {memory, [](void* data) { ::operator delete(data, kAligned); }};
}

void upload(Device device, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (device.type == DeviceType::kCuda) return cuda::upload(to, from, bytes, device.index);
  std::memcpy(to, from, bytes);
}

std::optional<ComputeCapability> capability_of(Device device) {
  if (device.type == DeviceType::kCpu) return std::nullopt;
  const cuda::DeviceInfo& info = cuda::device_info(device.index);
  return ComputeCapability{.major = info.major, .minor = info.minor};
}

std::size_t MemoryPlan::add(DType dtype, std::initializer_list<std::int64_t> sizes) {
  std::int64_t elements = 1;
  for (std::int64_t size : sizes) elements *= size;
  const std::size_t place = bytes_;
  const auto end = place + std::size_t(elements * size_bytes(dtype));
  bytes_ = (end + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

Tensor tensor_at(const std::shared_ptr<void>& memory, std::size_t place, DType dtype,
                 std::initializer_list<std::int64_t> sizes, Device device) {
  auto* data = static_cast<std::byte*>(memory.get()) + place;
  return Tensor::contiguous(data, dtype, sizes, device);
}

}  // namespace hpcattn
