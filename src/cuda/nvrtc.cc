// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/nvrtc.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "hpcattn/cuda.h"
#include "src/common/check.h"

namespace hpcattn::cuda {
namespace {

// C++20 and sm_90a came with 12.0; class types as template arguments are relied on from 12.3.
constexpr int kLeastMajor = 12;
constexpr int kLeastMinor = 3;

std::mutex mutex;
std::vector<std::string> named_paths;
std::atomic<const Nvrtc*> ready{nullptr};

void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
  for (const std::string& path : from) {
    if (std::find(to.begin(), to.end(), path) == to.end()) to.push_back(path);
  }
}

/// Where pip's packages put it, seen from the folder of a library of torch or of CUDA.
std::vector<std::string> beside_loaded() {
  std::vector<std::string> paths;
  for (const char* prefix : {"libcudart.so", "libcudart-", "libtorch_cuda.so", "libtorch_cpu.so"}) {
    for (const std::string& file : loaded_libraries(prefix)) {
      const std::string folder = file.substr(0, file.rfind('/') + 1);
      append(paths, {folder + "libnvrtc.so.13", folder + "libnvrtc.so.12",
                     folder + "../../cuda_nvrtc/lib/libnvrtc.so.12",
                     folder + "../../nvidia/cu13/lib/libnvrtc.so.13",
                     folder + "../../nvidia/cuda_nvrtc/lib/libnvrtc.so.12"});
    }
  }
  return paths;
}

bool exists(const std::string& path) {
  FILE* file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return false;
  std::fclose(file);
  return true;
}

bool find_functions(Nvrtc& n) {
  const SharedLibrary& l = n.library;
  return l.find(n.error_text, {"nvrtcGetErrorString"}) && l.find(n.version, {"nvrtcVersion"}) &&
         l.find(n.num_archs, {"nvrtcGetNumSupportedArchs"}) &&
         l.find(n.supported_archs, {"nvrtcGetSupportedArchs"}) &&
         l.find(n.create, {"nvrtcCreateProgram"}) && l.find(n.destroy, {"nvrtcDestroyProgram"}) &&
         l.find(n.compile, {"nvrtcCompileProgram"}) &&
         l.find(n.log_size, {"nvrtcGetProgramLogSize"}) && l.find(n.log, {"nvrtcGetProgramLog"}) &&
         l.find(n.cubin_size, {"nvrtcGetCUBINSize"}) && l.find(n.cubin, {"nvrtcGetCUBIN"}) &&
         l.find(n.ptx_size, {"nvrtcGetPTXSize"}) && l.find(n.ptx, {"nvrtcGetPTX"});
}

std::vector<std::string> candidates() {
  const char* named = std::getenv("HPCATTN_NVRTC");
  if (named != nullptr && *named != '\0') return {named};
  std::vector<std::string> files;
  append(files, loaded_libraries("libnvrtc.so"));
  append(files, loaded_libraries("libnvrtc-"));  // a wheel's copy with a hash in its name
  for (const std::string& path : named_paths) {
    if (exists(path)) append(files, {path});
  }
  for (const std::string& path : beside_loaded()) {
    if (exists(path)) append(files, {path});
  }
  append(files, {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so.13",
                 "/usr/local/cuda/lib64/libnvrtc.so.12"});
  return files;
}

/// Null where this one is of no use; `reasons` then says why.
std::unique_ptr<Nvrtc> open_one(const std::string& file, std::string& reasons) {
  auto opened = std::make_unique<Nvrtc>(Nvrtc{.library = SharedLibrary({file})});
  Nvrtc& n = *opened;
  if (!n.library.opened()) {
    reasons += (reasons.empty() ? "" : "; ") + n.library.attempts();
    return nullptr;
  }
  const bool complete = find_functions(n);
  if (n.version != nullptr) n.version(&n.major, &n.minor);
  if (!complete || n.major < kLeastMajor || (n.major == kLeastMajor && n.minor < kLeastMinor)) {
    reasons +=
        message(reasons.empty() ? "" : "; ", n.library.path(), " (version ", n.version_text(),
                ", expected ", kLeastMajor, ".", kLeastMinor, " or newer)");
    return nullptr;
  }
  int count = 0;
  n.num_archs(&count);
  n.archs.resize(std::size_t(std::max(count, 0)));
  if (count > 0) n.supported_archs(n.archs.data());
  std::sort(n.archs.begin(), n.archs.end());
  return opened;
}

const Nvrtc* open_nvrtc() {
  std::string reasons;
  for (const std::string& file : candidates()) {
    // Lives to the end of the process.
    if (std::unique_ptr<Nvrtc> opened = open_one(file, reasons)) return opened.release();
  }
  throw DeviceError(message(
      "cuda: kernels are compiled by libnvrtc, and none of these could be used: ", reasons,
      ". Install it (pip install nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12 for a driver of CUDA "
      "12; a CUDA build of torch brings it), or set HPCATTN_NVRTC to the path of libnvrtc.so."));
}

}  // namespace

std::string Nvrtc::version_text() const { return message(major, ".", minor); }

std::vector<std::string> nvrtc_candidates() {
  const std::lock_guard lock(mutex);
  return candidates();
}

void set_nvrtc_paths(std::vector<std::string> paths) {
  const std::lock_guard lock(mutex);
  named_paths = std::move(paths);
}

const Nvrtc& nvrtc() {
  if (const Nvrtc* opened = ready.load(std::memory_order_acquire)) return *opened;
  const std::lock_guard lock(mutex);
  if (ready.load() == nullptr) ready.store(open_nvrtc());
  return *ready.load();
}

}  // namespace hpcattn::cuda
