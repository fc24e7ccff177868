// SPDX-License-Identifier: Apache-2.0
// From a kernel's spec to a launch: source text -> cubin (from the disk cache, the wheel, or NVRTC)
// -> function of the driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "src/cuda/device.h"

namespace hpcattn::cuda {

/// One variant of a kernel, before it is compiled.
struct KernelVariant {
  /// The spec as a person writes it: "attention<{.head_dim = 128, .q = kBFloat16}>". For errors,
  /// logs and counters.
  std::string name;
  /// A whole translation unit over the embedded headers, that defines
  /// `extern "C" __global__ void hpcattn_kernel(const __grid_constant__ Params)`.
  std::string source;
  int threads = 128;              // of a cta
  std::int64_t shared_bytes = 0;  // dynamic shared memory of a cta
};

/// A variant that is loaded on a device. Lives to the end of the process.
class Kernel {
 public:
  const std::string& name() const { return name_; }
  int device() const { return device_; }

 private:
  friend const Kernel& load_kernel(int, const KernelVariant&);
  friend void launch_words(const Kernel&, const std::array<unsigned, 3>&, bool, const Execution&,
                           const void*);
  std::string name_;
  int device_ = 0;
  int threads_ = 0;
  unsigned shared_bytes_ = 0;
  void* function_ = nullptr;
};

/// Compiles or loads once a device and process; threads that ask for the same variant wait for the
/// first. Throws DeviceError with the compiler's log.
const Kernel& load_kernel(int device, const KernelVariant& variant);

/// The cubin of a variant for "sm_90a" and the like: from the caches, else compiled. Needs no GPU.
std::string cubin_for(const KernelVariant& variant, const std::string& arch);

/// The arch that a device's kernels are compiled for: "sm_80", "sm_90a", "sm_100a".
std::string arch_of(const DeviceInfo& device);

/// Use launch().
void launch_words(const Kernel& kernel, const std::array<unsigned, 3>& grid, bool programmatic,
                  const Execution& execution, const void* params);

/// Launches on execution.stream. `programmatic`: may start before the kernel ahead of it in the
/// stream has ended (sm_90 on; such a kernel waits itself, by griddepcontrol). Throws DeviceError
/// with the variant, grid and shared memory that were asked for.
template <typename Params>
void launch(const Kernel& kernel, const std::array<unsigned, 3>& grid, const Execution& execution,
            const Params& params, bool programmatic = false) {
  static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= 4096);
  launch_words(kernel, grid, programmatic, execution, &params);
}

}  // namespace hpcattn::cuda
