// SPDX-License-Identifier: Apache-2.0
// A libcuda whose one device is the CPU: memory is host memory, work is done when it is given to a
// stream, kernels run cta by cta (emulator/cta.h). As much of the driver as the library and its
// tests call. HPCATTN_EMULATED_ARCH (90) is 10 times the compute capability, HPCATTN_EMULATED_SMS
// (8) how many multiprocessors the device says it has, HPCATTN_EMULATED_SEED (1) another order of
// threads.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "emulator/cta.h"
#include "emulator/image.h"
#include "src/cuda/driver.h"

using hpcattn::cuda::address_of;
using hpcattn::cuda::DevicePointer;
using hpcattn::cuda::LaunchConfig;
using hpcattn::cuda::pointer_of;
using hpcattn::emulator::CtaMachine;
using hpcattn::emulator::Dim3;
using hpcattn::emulator::Entry;
using hpcattn::emulator::Launch;

namespace {

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNotFound = 500;
constexpr int kLaunchFailed = 719;
constexpr int kCaptureUnsupported = 900;

struct EmulatedModule {
  void* library = nullptr;
  const Entry* entry = nullptr;
  unsigned max_shared = 48 * 1024;
  ~EmulatedModule() {
    if (library != nullptr) dlclose(library);
  }
};

using Work = std::function<int()>;
using Graph = std::vector<Work>;
struct EmulatedStream {
  bool capturing = false;
  Graph captured;
};

// Work runs under it, one piece at a time, as on a GPU with one stream.
std::recursive_mutex mutex;
int sticky = 0;
std::string failure = "an emulated kernel failed";
thread_local std::vector<void*> contexts;

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

CtaMachine& the_machine() {
  static auto& machine =
      *new CtaMachine(static_cast<std::uint64_t>(number("HPCATTN_EMULATED_SEED", 1)));
  return machine;
}

EmulatedStream& stream_of(void* stream) {
  static auto& of_default = *new EmulatedStream;
  return stream == nullptr ? of_default : *static_cast<EmulatedStream*>(stream);
}

/// Now, or at each launch of the graph that is being captured.
int give(void* stream, Work work) {
  const std::lock_guard lock(mutex);
  if (sticky != 0) return sticky;
  EmulatedStream& s = stream_of(stream);
  if (!s.capturing) return work();
  s.captured.push_back(std::move(work));
  return 0;
}

int run_kernel(const EmulatedModule& module, Launch launch, const void* params) {
  if (launch.shared_bytes > module.max_shared) return kInvalidValue;
  launch.run = module.entry->run;
  launch.params = params;
  launch.shared = module.entry->shared();
  module.entry->attach(&the_machine());
  const std::string wrong = the_machine().run(launch);
  if (wrong.empty()) return 0;
  failure = "the emulated kernel failed: " + wrong;
  std::fprintf(stderr, "emulator: %s\n", wrong.c_str());
  return sticky = kLaunchFailed;
}

int launch_kernel(EmulatedModule* module, const Launch& launch, void* stream, void** params) {
  const auto* const first = static_cast<const char*>(params[0]);
  auto copy = std::make_shared<std::vector<char>>(first, first + module->entry->params_bytes);
  // As aligned as a parameter of a kernel is.
  return give(stream, [module, launch, copy] {
    void* const room = std::aligned_alloc(128, (copy->size() + 127) / 128 * 128);
    std::memcpy(room, copy->data(), copy->size());
    const int result = run_kernel(*module, launch, room);
    std::free(room);
    return result;
  });
}

template <typename Word>
int fill(DevicePointer to, std::size_t pitch, Word value, std::size_t width, std::size_t height,
         void* stream) {
  return give(stream, [=] {
    for (std::size_t row = 0; row < height; ++row) {
      auto* const at = reinterpret_cast<Word*>(static_cast<char*>(pointer_of(to)) + row * pitch);
      for (std::size_t i = 0; i < width; ++i) at[i] = value;
    }
    return 0;
  });
}

/// Memory holds anything at first: here what is no number in any dtype, up to a size that it does
/// not take long to fill.
int allocate(DevicePointer* memory, std::size_t bytes) {
  constexpr std::size_t kMostFilled = std::size_t{256} << 20;
  void* const room = std::aligned_alloc(512, (bytes + 511) / 512 * 512 + 512);
  if (room == nullptr) return kOutOfMemory;
  if (bytes <= kMostFilled) std::memset(room, 0xff, bytes);
  *memory = address_of(room);
  return 0;
}

int release(DevicePointer memory) {
  std::free(pointer_of(memory));
  return 0;
}

int load(const std::string& library, EmulatedModule& module) {
  std::string name = (std::filesystem::temp_directory_path() / "hpcattn-kernel-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0) return kOutOfMemory;
  const bool written =
      write(file, library.data(), library.size()) == static_cast<ssize_t>(library.size());
  close(file);
  if (written) module.library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module.library == nullptr) std::fprintf(stderr, "emulator: %s\n", dlerror());
  unlink(name.c_str());
  if (module.library == nullptr) return hpcattn::cuda::kInvalidImage;
  module.entry = static_cast<const Entry*>(dlsym(module.library, "hpcattn_entry"));
  return module.entry == nullptr ? kNotFound : 0;
}

struct Capability {
  int arch;
  int shared_per_sm;
  int shared_per_cta;
};
// CUDA C++ Programming Guide, technical specifications of compute capabilities.
constexpr Capability kCapabilities[] = {{80, 164 << 10, 163 << 10},
                                        {86, 100 << 10, 99 << 10},
                                        {89, 100 << 10, 99 << 10},
                                        {90, 228 << 10, 227 << 10}};

const Capability& capability() {
  const int arch = number("HPCATTN_EMULATED_ARCH", 90);
  for (const Capability& c : kCapabilities) {
    if (c.arch == arch) return c;
  }
  std::fprintf(stderr, "emulator: HPCATTN_EMULATED_ARCH is %d, expected 80, 86, 89 or 90\n", arch);
  std::abort();
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 99'000;
  return 0;
}
int cuGetErrorName(int result, const char** name) {
  *name = result == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR";
  return 0;
}
int cuGetErrorString(int result, const char** text) {
  *text = result == kLaunchFailed ? failure.c_str() : "an error of the emulated driver";
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
int cuDeviceGet(int* handle, int index) {
  *handle = index;
  return index == 0 ? 0 : 101;
}
int cuDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "emulated GPU");
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  using namespace hpcattn::cuda;
  switch (attribute) {
    case kNumSms: *value = number("HPCATTN_EMULATED_SMS", 8); return 0;
    case kL2Bytes: *value = 50 << 20; return 0;
    case kCapabilityMajor: *value = capability().arch / 10; return 0;
    case kCapabilityMinor: *value = capability().arch % 10; return 0;
    case kSharedBytesPerSm: *value = capability().shared_per_sm; return 0;
    case kSharedBytesPerCta: *value = capability().shared_per_cta; return 0;
    case kHasMemoryPools: *value = 1; return 0;
    default: return kInvalidValue;
  }
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{16} << 30;
  return 0;
}
int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{16} << 30;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  static int the_context = 0;
  *context = &the_context;
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return 0;
}
int cuCtxSetCurrent(void* context) {
  if (contexts.empty()) contexts.push_back(context);
  contexts.back() = context;
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  contexts.push_back(context);
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}
int cuModuleLoadData(EmulatedModule** module, const void* image) {
  const std::optional<std::string> library = hpcattn::emulator::library_of(image);
  if (!library) return hpcattn::cuda::kInvalidImage;
  auto made = std::make_unique<EmulatedModule>();
  if (const int result = load(*library, *made); result != 0) return result;
  *module = made.release();
  return 0;
}
int cuModuleUnload(EmulatedModule* module) {
  delete module;
  return 0;
}
// A module has one function, which stands for both.
int cuModuleGetFunction(EmulatedModule** function, EmulatedModule* module, const char* name) {
  *function = module;
  return std::strcmp(name, "hpcattn_kernel") == 0 ? 0 : kNotFound;
}
int cuFuncLoad(EmulatedModule*) { return 0; }
int cuFuncSetAttribute(EmulatedModule* module, int attribute, int value) {
  if (attribute != hpcattn::cuda::kMaxDynamicSharedBytes || value > capability().shared_per_cta) {
    return kInvalidValue;
  }
  module->max_shared = static_cast<unsigned>(value);
  return 0;
}
int cuLaunchKernel(EmulatedModule* module, unsigned x, unsigned y, unsigned z, unsigned cta_x,
                   unsigned cta_y, unsigned cta_z, unsigned shared_bytes, void* stream,
                   void** params, void**) {
  return launch_kernel(
      module, {.grid = {x, y, z}, .cta = {cta_x, cta_y, cta_z}, .shared_bytes = shared_bytes},
      stream, params);
}
int cuLaunchKernelEx(const LaunchConfig* config, EmulatedModule* module, void** params, void**) {
  return launch_kernel(module,
                       {.grid = {config->grid[0], config->grid[1], config->grid[2]},
                        .cta = {config->cta[0], config->cta[1], config->cta[2]},
                        .shared_bytes = config->shared_bytes},
                       config->stream, params);
}
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = std::calloc(1, bytes);
  return *memory == nullptr ? kOutOfMemory : 0;
}
int cuMemHostGetDevicePointer_v2(DevicePointer* on_device, void* memory, unsigned) {
  *on_device = address_of(memory);
  return 0;
}
int cuStreamCreate(EmulatedStream** stream, unsigned) {
  *stream = new EmulatedStream;
  return 0;
}
int cuStreamDestroy_v2(EmulatedStream* stream) {
  delete stream;
  return 0;
}
int cuStreamSynchronize(void* stream) {
  const std::lock_guard lock(mutex);
  return stream_of(stream).capturing ? kCaptureUnsupported : sticky;
}
int cuStreamIsCapturing(void* stream, int* status) {
  const std::lock_guard lock(mutex);
  *status = stream_of(stream).capturing ? 1 : 0;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int*) { return 0; }
int cuStreamBeginCapture_v2(void* stream, int) {
  const std::lock_guard lock(mutex);
  stream_of(stream) = {.capturing = true, .captured = {}};
  return 0;
}
int cuStreamEndCapture(void* stream, Graph** graph) {
  const std::lock_guard lock(mutex);
  *graph = new Graph(std::move(stream_of(stream).captured));
  stream_of(stream) = {};
  return 0;
}
int cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
  *executable = new Graph(*graph);
  return 0;
}
int cuGraphLaunch(Graph* executable, void* stream) {
  for (const Work& work : *executable) {
    if (const int result = give(stream, work); result != 0) return result;
  }
  return 0;
}
int cuGraphExecDestroy(Graph* executable) {
  delete executable;
  return 0;
}
int cuGraphDestroy(Graph* graph) {
  delete graph;
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, void* stream) {
  return give(stream, [=] {
    std::memcpy(to, pointer_of(from), bytes);
    return 0;
  });
}
int cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes, void* stream) {
  return give(stream, [=] {
    std::memcpy(pointer_of(to), from, bytes);
    return 0;
  });
}
int cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t bytes, void* stream) {
  return fill(to, bytes, value, bytes, 1, stream);
}
int cuMemsetD2D8Async(DevicePointer to, std::size_t pitch, unsigned char value, std::size_t width,
                      std::size_t height, void* stream) {
  return fill(to, pitch, value, width, height, stream);
}
int cuMemsetD2D16Async(DevicePointer to, std::size_t pitch, unsigned short value, std::size_t width,
                       std::size_t height, void* stream) {
  return fill(to, pitch, value, width, height, stream);
}
int cuMemsetD2D32Async(DevicePointer to, std::size_t pitch, unsigned value, std::size_t width,
                       std::size_t height, void* stream) {
  return fill(to, pitch, value, width, height, stream);
}
int cuMemAlloc_v2(DevicePointer* memory, std::size_t bytes) { return allocate(memory, bytes); }
int cuMemFree_v2(DevicePointer memory) { return release(memory); }
int cuMemAllocAsync(DevicePointer* memory, std::size_t bytes, void*) {
  return allocate(memory, bytes);
}
int cuMemFreeAsync(DevicePointer memory, void* stream) {
  // Of a graph, it lives as long as the process.
  const std::lock_guard lock(mutex);
  return stream_of(stream).capturing ? 0 : release(memory);
}

}  // extern "C"
