// SPDX-License-Identifier: Apache-2.0
// Device memory that an object owns: allocated once, at an address that stays.
#pragma once

#include <cstddef>
#include <memory>

namespace hpcattn::cuda {

/// Freed with the last copy of the pointer. Aligned to 256 bytes; what it holds is undefined.
/// Throws DeviceError. Not for a step: it may wait for the device.
std::shared_ptr<void> device_buffer(int device, std::size_t bytes);

/// Copies to device memory and waits for it, so that every stream sees it afterwards. For weights.
void upload(void* device_data, const void* host_data, std::size_t bytes, int device);

}  // namespace hpcattn::cuda
