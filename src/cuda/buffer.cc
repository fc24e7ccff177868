// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/buffer.h"

#include <algorithm>
#include <cstdint>
#include <exception>

#include "src/common/check.h"
#include "src/cuda/device.h"
#include "src/cuda/driver.h"

namespace hpcattn::cuda {
namespace {

/// A destructor has nobody to tell: at the end of the process the driver may be gone already.
void release(int device, DevicePointer address) {
  try {
    const DeviceGuard guard(device);
    const RelaxedCapture relaxed;
    driver().free(address);
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace

std::shared_ptr<void> device_buffer(int device, std::size_t bytes) {
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  const Driver& d = driver();
  if (d.alloc == nullptr || d.free == nullptr) {
    throw DeviceError("cuda: the driver has no cuMemAlloc. Install a newer NVIDIA driver.");
  }
  DevicePointer address = 0;
  check_driver(d.alloc(&address, std::max<std::size_t>(bytes, 1)),
               message("cuda: no memory for a buffer of ", bytes, " bytes on device ", device));
  return {pointer_of(address), [device, address](void*) { release(device, address); }};
}

void upload(void* device_data, const void* host_data, std::size_t bytes, int device) {
  const Execution default_stream;
  copy_to_device(device_data, host_data, bytes, device, default_stream);
  const DeviceGuard guard(device);
  check_driver(driver().stream_synchronize(nullptr), "cuda: waiting for a copy failed");
}

}  // namespace hpcattn::cuda
