// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/fake_libcuda.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "src/cuda/driver.h"

using hpcattn::cuda::Context;
using hpcattn::cuda::DevicePointer;
using hpcattn::cuda::Function;
using hpcattn::cuda::LaunchConfig;
using hpcattn::cuda::Module;
using hpcattn::cuda::Stream;

namespace {

std::recursive_mutex mutex;
std::string log_text;
std::map<std::string, int> failures;
int capturing = 0;
thread_local std::vector<Context> stack;

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

template <typename... Parts>
void note(const Parts&... parts) {
  std::ostringstream line;
  (line << ... << parts) << '\n';
  const std::lock_guard lock(mutex);
  log_text += line.str();
}

int result_of(const char* name) {
  const std::lock_guard lock(mutex);
  const auto found = failures.find(name);
  return found == failures.end() ? 0 : found->second;
}

void* pointer(DevicePointer address) { return reinterpret_cast<void*>(std::uintptr_t(address)); }
DevicePointer address(void* p) { return reinterpret_cast<std::uintptr_t>(p); }
Context context_of(int device) { return reinterpret_cast<Context>(std::uintptr_t(device) + 100); }
std::uintptr_t device_of(Context context) {
  return reinterpret_cast<std::uintptr_t>(context) - 100;
}

template <typename Word>
int fill(DevicePointer to, std::size_t pitch, Word value, std::size_t width, std::size_t height) {
  for (std::size_t row = 0; row < height; ++row) {
    for (std::size_t i = 0; i < width; ++i) {
      std::memcpy(static_cast<char*>(pointer(to)) + row * pitch + i * sizeof(Word), &value,
                  sizeof(Word));
    }
  }
  return result_of("fill");
}

const char* take_log() {
  static std::string taken;
  const std::lock_guard lock(mutex);
  taken = std::exchange(log_text, "");
  return taken.c_str();
}

void fail(const char* name, int result) {
  const std::lock_guard lock(mutex);
  failures[name] = result;
}

}  // namespace

extern "C" {

void fake_cuda(FakeCuda* out) {
  *out = {&take_log, &fail, [](int value) { capturing = value; }};
}

int cuInit(unsigned) { return number("FAKE_CUDA_INIT", 0); }
int cuDriverGetVersion(int* version) {
  *version = number("FAKE_CUDA_VERSION", 13000);
  return 0;
}
int cuGetErrorName(int result, const char** name) {
  *name = result == 700   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : result == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : result == 100 ? "CUDA_ERROR_NO_DEVICE"
                          : nullptr;
  return 0;
}
int cuGetErrorString(int result, const char** text) {
  *text = result == 700 ? "an illegal memory access was encountered" : nullptr;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = number("FAKE_CUDA_DEVICES", 2);
  return 0;
}
int cuDeviceGet(int* handle, int index) {
  *handle = index;
  return 0;
}
int cuDeviceGetName(char* name, int, int) {
  std::strcpy(name, "Fake GPU");
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const int capability = number("FAKE_CUDA_CAPABILITY", 90);
  switch (attribute) {
    case hpcattn::cuda::kCapabilityMajor: *value = capability / 10; break;
    case hpcattn::cuda::kCapabilityMinor: *value = capability % 10; break;
    case hpcattn::cuda::kNumSms: *value = 132; break;
    case hpcattn::cuda::kSharedBytesPerCta: *value = 232448; break;
    case hpcattn::cuda::kHasMemoryPools: *value = 1; break;
    default: *value = 1 << 20;
  }
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t(1) << 34;
  return 0;
}
int cuDevicePrimaryCtxRetain(Context* context, int device) {
  *context = context_of(device);
  return 0;
}
int cuCtxGetCurrent(Context* context) {
  *context = stack.empty() ? nullptr : stack.back();
  return 0;
}
int cuCtxPushCurrent_v2(Context context) {
  stack.push_back(context);
  note("push ", device_of(context));
  return 0;
}
int cuCtxPopCurrent_v2(Context* context) {
  *context = stack.back();
  note("pop ", device_of(*context));
  stack.pop_back();
  return 0;
}
int cuModuleLoadData(Module* module, const void* image) {
  note("load ", static_cast<const char*>(image));
  const int result = result_of("cuModuleLoadData");
  if (result == 0) *module = static_cast<Module>(std::malloc(1));
  return result;
}
int cuModuleUnload(Module module) {
  std::free(module);
  return 0;
}
int cuModuleGetFunction(Function* function, Module module, const char*) {
  *function = reinterpret_cast<Function>(module);
  return result_of("cuModuleGetFunction");
}
int cuFuncSetAttribute(Function, int attribute, int value) {
  note("attribute ", attribute, " ", value);
  return result_of("cuFuncSetAttribute");
}
int cuLaunchKernel(Function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                   unsigned, unsigned shared_bytes, Stream stream, void** params, void**) {
  note("launch ", x, "x", y, "x", z, " ", threads, " ", shared_bytes, " ",
       reinterpret_cast<std::uintptr_t>(stream), " ", *static_cast<int*>(params[0]));
  return result_of("cuLaunchKernel");
}
int cuLaunchKernelEx(const LaunchConfig* config, Function, void**, void**) {
  note("launch_ex ", config->grid[0], "x", config->grid[1], "x", config->grid[2], " attribute ",
       config->attributes[0].id, " ", config->attributes[0].value.programmatic_serialization);
  return result_of("cuLaunchKernelEx");
}
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = std::malloc(bytes);
  return 0;
}
int cuMemHostGetDevicePointer_v2(DevicePointer* on_device, void* memory, unsigned) {
  *on_device = address(memory);
  return 0;
}
int cuStreamSynchronize(Stream) { return result_of("cuStreamSynchronize"); }
int cuStreamIsCapturing(Stream, int* status) {
  *status = capturing;
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, Stream) {
  std::memcpy(to, pointer(from), bytes);
  return 0;
}
int cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes, Stream) {
  std::memcpy(pointer(to), from, bytes);
  note("copy from ", from);
  return 0;
}
int cuMemsetD2D8Async(DevicePointer to, std::size_t pitch, unsigned char value, std::size_t width,
                      std::size_t height, Stream) {
  return fill(to, pitch, value, width, height);
}
int cuMemsetD2D16Async(DevicePointer to, std::size_t pitch, unsigned short value, std::size_t width,
                       std::size_t height, Stream) {
  return fill(to, pitch, value, width, height);
}
int cuMemsetD2D32Async(DevicePointer to, std::size_t pitch, unsigned value, std::size_t width,
                       std::size_t height, Stream) {
  return fill(to, pitch, value, width, height);
}
int cuMemAllocAsync(DevicePointer* memory, std::size_t bytes, Stream) {
  note("alloc ", bytes);
  const int result = result_of("cuMemAllocAsync");
  if (result == 0) *memory = address(std::malloc(bytes));
  return result;
}
int cuMemFreeAsync(DevicePointer memory, Stream) {
  std::free(pointer(memory));
  note("free");
  return 0;
}
int cuMemAlloc_v2(DevicePointer* memory, std::size_t bytes) {
  note("buffer ", bytes);
  const int result = result_of("cuMemAlloc_v2");
  if (result == 0) *memory = address(std::malloc(bytes));
  return result;
}
int cuMemFree_v2(DevicePointer memory) {
  std::free(pointer(memory));
  note("free buffer");
  return 0;
}

}  // extern "C"
