// SPDX-License-Identifier: Apache-2.0
// Source text to machine code by NVRTC.
#pragma once

#include <string>
#include <vector>

#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

/// What NVRTC is told of an arch: "sm_90a" where it knows that, else the nearest lower one of the
/// same generation, else PTX of the newest it knows, which the driver compiles.
struct Target {
  std::string option;  // "sm_90a", "compute_90"
  bool is_ptx = false;
};
Target target_of(const std::string& arch, const std::vector<int>& known_archs);

/// The options of every compilation, but the target; with HPCATTN_LINE_INFO, as it was at the first
/// call, kernels know the lines of their sources, and with HPCATTN_SANITIZER they are such as
/// compute-sanitizer can follow.
const std::vector<std::string>& compile_options();

/// Compiles, whatever a cache holds; counts it. Throws DeviceError with the variant and the log.
std::string compile(const KernelVariant& variant, const std::string& arch);

}  // namespace hpcattn::cuda
