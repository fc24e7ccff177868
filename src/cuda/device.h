// SPDX-License-Identifier: Apache-2.0
// GPUs as the launchers see them. Nothing of CUDA is linked: libcuda is opened at the first use,
// and importing the library touches no GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"

namespace hpcattn::cuda {

struct DeviceInfo {
  int index = 0;
  int major = 0;  // compute capability
  int minor = 0;
  int num_sms = 0;
  std::int64_t shared_bytes_per_cta = 0;  // the most that a kernel may opt in to
  std::int64_t shared_bytes_per_sm = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  std::string name;
};

/// Looked up once a device. Throws DeviceError where there is no driver (what was tried, what is
/// needed) or no such device, Unsupported below compute capability 8.0.
const DeviceInfo& device_info(int device);

/// Makes a device's primary context (torch's and the runtime API's) current for this thread, and
/// puts back what was there before.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  bool pushed_ = false;
};

/// Device memory for one call: from Execution::allocate, else from the driver's stream-ordered
/// pool. Safe under graph capture, and not shared between streams. Aligned to 256 bytes or more. A
/// DeviceGuard of the device must be alive around it.
class Workspace {
 public:
  Workspace(const Execution& execution, int device, std::size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  void* stream_ = nullptr;
  bool from_driver_ = false;
};

/// A copy of a device tensor on the host, of the same sizes, contiguous. Waits for the stream.
class HostCopy {
 public:
  HostCopy(const Tensor& tensor, const Execution& execution);
  const Tensor& tensor() const { return tensor_; }

 private:
  std::vector<std::byte> bytes_;
  Tensor tensor_;
};

/// Sets every element of a tensor (any strides) to the 1, 2 or 4 byte pattern of its dtype, in
/// stream order.
void fill_pattern(const Tensor& tensor, std::uint32_t pattern, const Execution& execution);

/// Bytes from host to device memory in stream order, as a value captured at the call.
void copy_to_device(void* device_data, const void* host_data, std::size_t bytes, int device,
                    const Execution& execution);

/// Where kernels of this device report what they found wrong (kernels/tile/fault.h); an address
/// that kernels can write to.
void* fault_mailbox(int device);

/// Throws DeviceError when a kernel of this device has reported something since the last call, and
/// clears it. Reads host memory alone: no wait.
void check_faults(int device);

}  // namespace hpcattn::cuda
