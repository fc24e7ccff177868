// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/kernel.h"

#include <map>
#include <memory>
#include <mutex>

#include "src/common/check.h"
#include "src/cuda/compile.h"
#include "src/cuda/context.h"

namespace hpcattn::cuda {
namespace {

/// A variant on a device: threads that want the same one wait for its mutex.
struct Slot {
  std::mutex mutex;
  std::unique_ptr<const Kernel> kernel;
};

Slot& slot_of(int device, const std::string& source) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::string>, Slot> slots;
  const std::lock_guard lock(mutex);
  return slots[{device, source}];
}

Function load_function(int device, const KernelVariant& variant, const std::string& cubin) {
  const Driver& d = driver();
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  Module module = nullptr;
  check_driver(d.module_load(&module, cubin.data()),
               message("cuda: ", variant.name, " could not be loaded on device ", device));
  Function function = nullptr;
  check_driver(d.module_function(&function, module, "hpcattn_kernel"),
               message("cuda: ", variant.name, " has no function hpcattn_kernel"));
  if (variant.shared_bytes > 48 * 1024) {
    check_driver(
        d.set_function_attribute(function, kMaxDynamicSharedBytes, int(variant.shared_bytes)),
        message("cuda: ", variant.name, " asks for ", variant.shared_bytes,
                " bytes of shared memory a cta, device ", device, " allows ",
                device_info(device).shared_bytes_per_cta));
  }
  return function;
}

}  // namespace

const Kernel& load_kernel(int device, const KernelVariant& variant) {
  Slot& slot = slot_of(device, variant.source);
  const std::lock_guard lock(slot.mutex);
  if (slot.kernel == nullptr) {
    const std::string cubin = cubin_for(variant, arch_of(device_info(device)));
    auto kernel = std::make_unique<Kernel>();
    kernel->name_ = variant.name;
    kernel->device_ = device;
    kernel->threads_ = variant.threads;
    kernel->shared_bytes_ = unsigned(variant.shared_bytes);
    kernel->function_ = load_function(device, variant, cubin);
    slot.kernel = std::move(kernel);
  }
  return *slot.kernel;
}

std::string cubin_for(const KernelVariant& variant, const std::string& arch) {
  return compile(variant, arch);
}

std::string arch_of(const DeviceInfo& device) {
  const bool specific = (device.major == 9 || device.major == 10) && device.minor == 0;
  return message("sm_", device.major, device.minor, specific ? "a" : "");
}

}  // namespace hpcattn::cuda
