// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/driver.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "src/common/check.h"

namespace hpcattn::cuda {
namespace {

// cuLaunchKernel's binaries of sm_80 with 64-bit parameters, stream-ordered memory, C++20 by NVRTC:
// all there in CUDA 12.0 (driver 525).
constexpr int kLeastVersion = 12000;

std::atomic<const Driver*> ready{nullptr};
std::atomic<bool> forked{false};

void note_fork() {
  if (ready.load() != nullptr) forked.store(true);
}

[[noreturn]] void throw_forked() {
  throw DeviceError(
      "cuda: this process was forked from one that had used the GPU, and CUDA does not work in such "
      "a child. Start it anew instead (Python: multiprocessing with the start method 'spawn' or "
      "'forkserver'), or use the GPU after the fork only.");
}

std::vector<std::string> candidates() {
  const char* named = std::getenv("HPCATTN_LIBCUDA");
  if (named != nullptr && *named != '\0') return {named};
  return {"libcuda.so.1"};
}

const char* first_missing(Driver& d) {
  const SharedLibrary& l = d.library;
  const auto need = [&](auto*& function, const char* name) {
    return l.find(function, {name}) ? nullptr : name;
  };
  const char* missing = nullptr;
  const auto note = [&](const char* name) {
    if (missing == nullptr) missing = name;
  };
  note(need(d.init, "cuInit"));
  note(need(d.driver_version, "cuDriverGetVersion"));
  note(need(d.error_name, "cuGetErrorName"));
  note(need(d.error_text, "cuGetErrorString"));
  note(need(d.device_count, "cuDeviceGetCount"));
  note(need(d.device_get, "cuDeviceGet"));
  note(need(d.device_name, "cuDeviceGetName"));
  note(need(d.device_attribute, "cuDeviceGetAttribute"));
  note(need(d.device_memory, "cuDeviceTotalMem_v2"));
  note(need(d.primary_context, "cuDevicePrimaryCtxRetain"));
  note(need(d.current_context, "cuCtxGetCurrent"));
  note(need(d.push_context, "cuCtxPushCurrent_v2"));
  note(need(d.pop_context, "cuCtxPopCurrent_v2"));
  note(need(d.module_load, "cuModuleLoadData"));
  note(need(d.module_unload, "cuModuleUnload"));
  note(need(d.module_function, "cuModuleGetFunction"));
  note(need(d.set_function_attribute, "cuFuncSetAttribute"));
  note(need(d.launch, "cuLaunchKernel"));
  note(need(d.host_alloc, "cuMemHostAlloc"));
  note(need(d.host_device_pointer, "cuMemHostGetDevicePointer_v2"));
  note(need(d.stream_synchronize, "cuStreamSynchronize"));
  note(need(d.copy_to_host, "cuMemcpyDtoHAsync_v2"));
  note(need(d.copy_to_device, "cuMemcpyHtoDAsync_v2"));
  note(need(d.fill8, "cuMemsetD2D8Async"));
  note(need(d.fill16, "cuMemsetD2D16Async"));
  note(need(d.fill32, "cuMemsetD2D32Async"));
  l.find(d.launch_ex, {"cuLaunchKernelEx"});
  l.find(d.function_load, {"cuFuncLoad"});
  l.find(d.is_capturing, {"cuStreamIsCapturing"});
  l.find(d.exchange_capture_mode, {"cuThreadExchangeStreamCaptureMode"});
  l.find(d.alloc_async, {"cuMemAllocAsync"});
  l.find(d.free_async, {"cuMemFreeAsync"});
  l.find(d.encode_tensor_map, {"cuTensorMapEncodeTiled"});
  l.find(d.alloc, {"cuMemAlloc_v2"});
  l.find(d.free, {"cuMemFree_v2"});
  return missing;
}

/// Illegal address, launch timeout, assert, illegal instruction, misaligned address and the like.
bool is_sticky(Result result) {
  return result == 700 || result == 702 ||
         (result >= 709 && result <= 719 && result != 712 && result != 713);
}

std::string describe_with(const Driver& d, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  d.error_name(result, &name);
  d.error_text(result, &text);
  return message(name == nullptr ? "CUDA error" : name, " (", result, ", ",
                 text == nullptr ? "unknown" : text, ")");
}

const Driver* open_driver() {
  auto opened = std::make_unique<Driver>(Driver{.library = SharedLibrary(candidates())});
  Driver& d = *opened;
  if (!d.library.opened()) {
    throw DeviceError(message("cuda: there is no NVIDIA driver here: could not open ",
                              d.library.attempts(), ". Install one of CUDA ",
                              cuda_version(kLeastVersion),
                              " or newer where there is a GPU, or keep the tensors on the CPU."));
  }
  if (const char* missing = first_missing(d)) {
    throw DeviceError(message("cuda: ", d.library.path(), " has no ", missing,
                              ", expected a driver of CUDA ", cuda_version(kLeastVersion),
                              " or newer. Update the NVIDIA driver."));
  }
  d.driver_version(&d.version);
  if (d.version < kLeastVersion) {
    throw DeviceError(message("cuda: the NVIDIA driver (", d.library.path(), ") is of CUDA ",
                              cuda_version(d.version), ", expected ", cuda_version(kLeastVersion),
                              " (driver 525) or newer. Update the NVIDIA driver."));
  }
  const Result result = d.init(0);
  if (result == kNotInitialized) throw_forked();
  if (result != kSuccess) {
    throw DeviceError(
        message("cuda: cuInit failed: ", describe_with(d, result),
                ". Is a GPU visible to this process (nvidia-smi, CUDA_VISIBLE_DEVICES)?"));
  }
  pthread_atfork(nullptr, nullptr, &note_fork);
  return opened.release();  // lives to the end of the process
}

}  // namespace

const Driver& driver() {
  if (forked.load(std::memory_order_relaxed)) [[unlikely]]
    throw_forked();
  if (const Driver* opened = ready.load(std::memory_order_acquire)) return *opened;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (ready.load() == nullptr) ready.store(open_driver());
  return *ready.load();
}

RelaxedCapture::RelaxedCapture() : driver_(driver()) {
  if (driver_.exchange_capture_mode != nullptr) driver_.exchange_capture_mode(&mode_);
}

RelaxedCapture::~RelaxedCapture() {
  if (driver_.exchange_capture_mode != nullptr) driver_.exchange_capture_mode(&mode_);
}

bool is_capturing(void* stream) {
  const Driver& d = driver();
  int status = 0;
  if (d.is_capturing == nullptr) return false;
  // Asking for the default stream while another one is captured is an error of its own: not ours.
  return d.is_capturing(static_cast<Stream>(stream), &status) == kSuccess && status != 0;
}

void check_driver(Result result, const std::string& what) {
  if (result != kSuccess) throw DeviceError(message(what, ": ", describe(result)));
}

std::string describe(Result result) {
  std::string text = describe_with(driver(), result) + ".";
  if (is_sticky(result)) {
    text +=
        " A kernel before this call failed, ours or another's, and CUDA is of no more use in this "
        "process: start it anew. HPCATTN_DEVICE_CHECKS=1 checks page ids, lengths and slots on the "
        "GPU; compute-sanitizer shows which kernel it was.";
  }
  return text;
}

std::string cuda_version(int version) { return message(version / 1000, ".", version % 1000 / 10); }

}  // namespace hpcattn::cuda
