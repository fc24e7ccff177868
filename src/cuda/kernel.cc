// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/kernel.h"

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "src/common/check.h"
#include "src/cuda/context.h"
#include "src/cuda/cubin_store.h"

namespace hpcattn::cuda {
namespace {

/// A variant on a device: threads that want the same one wait for its mutex.
struct Slot {
  std::mutex mutex;
  std::unique_ptr<const Kernel> kernel;
};

Slot& slot_of(int device, const KernelVariant& variant) {
  static std::mutex mutex;
  // Never destroyed: kernels live to the end of the process.
  static auto& slots = *new std::map<std::tuple<int, int, std::int64_t, std::string>, Slot>;
  const std::lock_guard lock(mutex);
  return slots[{device, variant.threads, variant.shared_bytes, variant.source}];
}

/// A driver that does not take machine code is most often older than what made it.
std::string load_failure(const KernelVariant& variant, const DeviceInfo& info, const Cubin& cubin,
                         Result result) {
  std::string text = message("cuda: ", variant.name, " could not be loaded on device ", info.index,
                             " (", info.name, ", ", arch_of(info), "): ", describe(result));
  const bool not_taken = result == kInvalidImage || result == kNoBinaryForGpu ||
                         result == kInvalidPtx || result == kUnsupportedPtxVersion;
  if (not_taken && cubin.nvrtc_major * 1000 + cubin.nvrtc_minor * 10 > driver().version) {
    text += message(" It was made by libnvrtc ", cubin.nvrtc_major, ".", cubin.nvrtc_minor,
                    ", the driver knows CUDA ", cuda_version(driver().version),
                    ". Update the driver, or set HPCATTN_NVRTC to a libnvrtc of CUDA ",
                    driver().version / 1000, ".");
  }
  return text;
}

/// A module that is unloaded again unless its kernel gets kept.
class LoadingModule {
 public:
  explicit LoadingModule(Module module) : module_(module) {}
  ~LoadingModule() {
    if (module_ != nullptr) driver().module_unload(module_);
  }
  LoadingModule(const LoadingModule&) = delete;
  LoadingModule& operator=(const LoadingModule&) = delete;

  Module get() const { return module_; }
  void keep() { module_ = nullptr; }

 private:
  Module module_;
};

Function load_function(const KernelVariant& variant, const DeviceInfo& info, const Cubin& cubin) {
  const Driver& d = driver();
  const DeviceGuard guard(info.index);
  const RelaxedCapture relaxed;
  Module loaded = nullptr;
  const Result result = d.module_load(&loaded, cubin.bytes.data());
  if (result != kSuccess) throw DeviceError(load_failure(variant, info, cubin, result));
  LoadingModule module(loaded);
  Function function = nullptr;
  check_driver(d.module_function(&function, module.get(), "hpcattn_kernel"),
               message("cuda: ", variant.name, " has no function hpcattn_kernel"));
  // Now, and not at the first launch: that one may be captured into a graph.
  if (d.function_load != nullptr) {
    check_driver(d.function_load(function),
                 message("cuda: ", variant.name, " could not be loaded"));
  }
  constexpr std::int64_t kWithoutOptIn = 49'152;
  if (variant.shared_bytes > kWithoutOptIn) {
    check_driver(
        d.set_function_attribute(function, kMaxDynamicSharedBytes, int(variant.shared_bytes)),
        message("cuda: ", variant.name, " asks for ", variant.shared_bytes,
                " bytes of shared memory a cta, of which device ", info.index, " (", info.name,
                ") has ", info.shared_bytes_per_cta));
  }
  module.keep();
  return function;
}

}  // namespace

const Kernel& load_kernel(int device, const KernelVariant& variant) {
  const DeviceInfo& info = device_info(device);
  Slot& slot = slot_of(device, variant);
  const std::lock_guard lock(slot.mutex);
  if (slot.kernel == nullptr) {
    const Cubin cubin = find_cubin(variant, arch_of(info), driver().version);
    auto kernel = std::make_unique<Kernel>();
    kernel->name_ = variant.name;
    kernel->device_ = device;
    kernel->threads_ = variant.threads;
    kernel->shared_bytes_ = unsigned(variant.shared_bytes);
    kernel->function_ = load_function(variant, info, cubin);
    slot.kernel = std::move(kernel);
  }
  return *slot.kernel;
}

std::string cubin_for(const KernelVariant& variant, const std::string& arch) {
  return find_cubin(variant, arch, 0).bytes;
}

std::string arch_of(const DeviceInfo& device) {
  const bool specific = (device.major == 9 || device.major == 10) && device.minor == 0;
  return message("sm_", device.major, device.minor, specific ? "a" : "");
}

}  // namespace hpcattn::cuda
