// SPDX-License-Identifier: Apache-2.0
// What is kept of each device for the life of the process.
#pragma once

#include "src/cuda/device.h"
#include "src/cuda/driver.h"

namespace hpcattn {
struct Fault;
}

namespace hpcattn::cuda {

struct DeviceState {
  DeviceInfo info;
  Context context = nullptr;  // primary, retained
  bool has_memory_pools = false;
  Fault* mailbox = nullptr;  // host memory
  void* mailbox_on_device = nullptr;
};

/// Made at the first call for a device. Throws as device_info() does.
const DeviceState& device_state(int device);

/// The state where it has been made already, else null. Throws nothing.
const DeviceState* existing_state(int device);

}  // namespace hpcattn::cuda
