// SPDX-License-Identifier: Apache-2.0
#include "torch/execution.h"

#include <dlfcn.h>
#include <pthread.h>
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>

#include "src/common/check.h"

namespace hpcattn::torch_ops {
namespace {

/// The indices of one parallel_for, taken one by one: torch cuts ranges into equal chunks, and
/// tasks are not equal. An exception must not cross torch's C functions, so the first one waits
/// here.
struct Indices {
  const std::function<void(int)>* body = nullptr;
  int n = 0;
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr error;

  void take_all() {
    for (int i = next.fetch_add(1); i < n; i = next.fetch_add(1)) {
      try {
        (*body)(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  }
};

/// Whether this process is a forked child. The threads of torch's pool are the parent's: a loop
/// handed to it would wait for them for ever. The library's own pool starts anew in a child.
std::atomic<bool> forked{false};
[[maybe_unused]] const int kAtFork = pthread_atfork(nullptr, nullptr, [] { forked = true; });

void torch_parallel(int n, const std::function<void(int)>& body) {
  Indices indices;
  indices.body = &body;
  indices.n = n;
  const auto worker = [](std::int64_t begin, std::int64_t end, void* context) {
    for (std::int64_t i = begin; i < end; ++i) static_cast<Indices*>(context)->take_all();
  };
  TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, std::min(n, torch_threads()), 1, worker, &indices));
  if (indices.error) std::rethrow_exception(indices.error);
}

using StreamGetter = AOTITorchError (*)(std::int32_t, void**);

/// torch's C function that gives a cudaStream_t. It lies in the CUDA half of torch, which is not
/// linked, so that one binary serves CPU builds too; where a tensor is on a GPU that half is
/// loaded, though not into the global scope.
StreamGetter find_stream_getter() {
  constexpr const char* kName = "aoti_torch_get_current_cuda_stream";
  void* half = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* symbol = half == nullptr ? nullptr : dlsym(half, kName);
  if (symbol == nullptr) symbol = dlsym(RTLD_DEFAULT, kName);
  return reinterpret_cast<StreamGetter>(symbol);
}

void* current_stream(int device) {
  static const StreamGetter get = find_stream_getter();
  if (get == nullptr) {
    throw DeviceError(
        "hpcattn: tensors are on cuda, and this torch has no libtorch_cuda.so with "
        "aoti_torch_get_current_cuda_stream (a ROCm build?). Install a CUDA build of torch.");
  }
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(get(device, &stream));
  return stream;
}

bool check_values_of_environment() {
  const char* text = std::getenv("HPCATTN_CHECK_VALUES");
  return text != nullptr && *text != '\0' && std::string_view(text) != "0";
}

std::atomic<bool>& check_values() {
  static std::atomic<bool> on{check_values_of_environment()};
  return on;
}

}  // namespace

void* CallMemory::take(std::size_t bytes, int device) {
  const auto size = static_cast<std::int64_t>(bytes);
  constexpr std::int64_t kStride = 1;
  AtenTensorHandle block = nullptr;
  const AOTITorchError failed = aoti_torch_empty_strided(
      1, &size, &kStride, aoti_torch_dtype_uint8(), aoti_torch_device_type_cuda(), device, &block);
  if (failed != AOTI_TORCH_SUCCESS) {
    throw DeviceError(message("hpcattn: torch's allocator has no ", bytes, " bytes on cuda:",
                              device, " for a call's partial results. Keep some memory free."));
  }
  blocks_.emplace_back(block);
  return blocks_.back().mutable_data_ptr();
}

int torch_threads() {
  std::uint32_t threads = 1;
  TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
  return static_cast<int>(std::max(threads, 1U));
}

Execution torch_execution(Device device, CallMemory& memory) {
  Execution execution;
  if (device.type == DeviceType::kCpu) {
    execution.num_threads = torch_threads();
    if (!forked) execution.parallel_for = torch_parallel;
    return execution;
  }
  execution.stream = current_stream(device.index);
  execution.check_values = check_values().load(std::memory_order_relaxed);
  // Small enough to lie within the std::function. Workspaces are taken on the device of the call.
  execution.allocate = [&memory, index = device.index](std::size_t bytes) {
    return memory.take(bytes, index);
  };
  return execution;
}

bool set_check_values(bool on) { return check_values().exchange(on); }

}  // namespace hpcattn::torch_ops
