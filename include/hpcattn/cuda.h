// SPDX-License-Identifier: Apache-2.0
// The CUDA side from without: which GPUs there are, where compiled kernels are kept, what has been
// compiled. Nothing here is needed to compute: operators open the driver and libnvrtc themselves,
// at the first CUDA tensor. docs/cuda.md has the environment variables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hpcattn::cuda {

/// The GPUs that this process sees. Opens the driver; throws DeviceError where there is none, with
/// what was tried and what is needed.
int device_count();

/// "12.4": the newest CUDA that the driver knows. Throws as device_count() does.
std::string driver_cuda_version();

/// Files to try for libnvrtc before the system's (those of pip packages), in this order. No effect
/// once it has been opened.
void set_nvrtc_paths(std::vector<std::string> paths);

/// Where this process keeps compiled kernels; empty where it can keep none.
std::string cache_folder();

/// One run of the compiler in this process.
struct Compilation {
  std::string name;  // the kernel with its parameters, as errors name it
  std::string arch;  // "sm_90a"
  double seconds = 0;
};

/// All of this process, failed ones included. counters()["compilations"] is how many there were
/// since reset_counters(): 0 while serving after prepare.
std::vector<Compilation> compilations();

/// What `hpcattn doctor` shows of the driver, the GPUs, libnvrtc and the caches, as JSON.
/// `use_driver` false: looks at files only and leaves libcuda alone, so that the process may still
/// fork. Throws nothing for what is missing: that is what it reports.
std::string status_json(bool use_driver);

}  // namespace hpcattn::cuda
