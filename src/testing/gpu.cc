// SPDX-License-Identifier: Apache-2.0
#include "src/testing/gpu.h"

#include <dlfcn.h>

#include <array>
#include <stdexcept>
#include <utility>

namespace hpcattn::testkit {
namespace {

using Result = int;     // CUresult
using Address = void*;  // CUdeviceptr, an integer that is passed alike

/// The functions of libcuda that tests call, by the names that its header gives them.
struct Driver {
  Result (*init)(unsigned) = nullptr;
  Result (*error_string)(Result, const char**) = nullptr;
  Result (*driver_version)(int*) = nullptr;
  Result (*device_count)(int*) = nullptr;
  Result (*device_name)(char*, int, int) = nullptr;
  Result (*device_attribute)(int*, int, int) = nullptr;
  Result (*retain_context)(void**, int) = nullptr;
  Result (*set_context)(void*) = nullptr;
  Result (*memory_info)(std::size_t*, std::size_t*) = nullptr;
  Result (*allocate)(Address*, std::size_t) = nullptr;
  Result (*free)(Address) = nullptr;
  Result (*to_device)(Address, const void*, std::size_t, void*) = nullptr;
  Result (*to_host)(void*, Address, std::size_t, void*) = nullptr;
  Result (*fill)(Address, unsigned char, std::size_t, void*) = nullptr;
  Result (*create_stream)(void**, unsigned) = nullptr;
  Result (*destroy_stream)(void*) = nullptr;
  Result (*wait)(void*) = nullptr;
  Result (*begin_capture)(void*, int) = nullptr;
  Result (*end_capture)(void*, void**) = nullptr;
  Result (*instantiate)(void**, void*, unsigned long long) = nullptr;
  Result (*launch_graph)(void*, void*) = nullptr;
  Result (*destroy_executable)(void*) = nullptr;
  Result (*destroy_graph)(void*) = nullptr;

  std::string why_not;
  void* context = nullptr;  // the primary context of GPU 0
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Driver open_driver() {
  Driver d;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    d.why_not = "no NVIDIA driver: libcuda.so.1 can not be opened";
    return d;
  }
  const bool complete =
      find(library, "cuInit", d.init) && find(library, "cuGetErrorString", d.error_string) &&
      find(library, "cuDriverGetVersion", d.driver_version) &&
      find(library, "cuDeviceGetCount", d.device_count) &&
      find(library, "cuDeviceGetName", d.device_name) &&
      find(library, "cuDeviceGetAttribute", d.device_attribute) &&
      find(library, "cuDevicePrimaryCtxRetain", d.retain_context) &&
      find(library, "cuCtxSetCurrent", d.set_context) &&
      find(library, "cuMemGetInfo_v2", d.memory_info) &&
      find(library, "cuMemAlloc_v2", d.allocate) && find(library, "cuMemFree_v2", d.free) &&
      find(library, "cuMemcpyHtoDAsync_v2", d.to_device) &&
      find(library, "cuMemcpyDtoHAsync_v2", d.to_host) &&
      find(library, "cuMemsetD8Async", d.fill) &&
      find(library, "cuStreamCreate", d.create_stream) &&
      find(library, "cuStreamDestroy_v2", d.destroy_stream) &&
      find(library, "cuStreamSynchronize", d.wait) &&
      find(library, "cuStreamBeginCapture_v2", d.begin_capture) &&
      find(library, "cuStreamEndCapture", d.end_capture) &&
      find(library, "cuGraphInstantiateWithFlags", d.instantiate) &&
      find(library, "cuGraphLaunch", d.launch_graph) &&
      find(library, "cuGraphExecDestroy", d.destroy_executable) &&
      find(library, "cuGraphDestroy", d.destroy_graph);
  int count = 0;
  if (!complete) {
    d.why_not = "the NVIDIA driver is older than CUDA 11.4";
  } else if (const Result result = d.init(0); result != 0) {
    d.why_not = "cuInit gives error " + std::to_string(result);
  } else if (d.device_count(&count) != 0 || count == 0) {
    d.why_not = "the NVIDIA driver sees no GPU";
  } else if (const Result retained = d.retain_context(&d.context, 0); retained != 0) {
    d.why_not = "cuDevicePrimaryCtxRetain gives error " + std::to_string(retained);
  }
  return d;
}

const Driver& driver() {
  static const Driver instance = open_driver();
  return instance;
}

void require(Result result, const char* what) {
  if (result == 0) return;
  const char* text = nullptr;
  driver().error_string(result, &text);
  throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(result) + " (" +
                           (text != nullptr ? text : "unknown") + ")");
}

Address address(const void* pointer) { return const_cast<void*>(pointer); }

}  // namespace

const std::string& why_no_gpu() { return driver().why_not; }

std::string gpu_name() {
  if (!why_no_gpu().empty()) return why_no_gpu();
  std::array<char, 256> name{};
  int version = 0, major = 0, minor = 0;
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  require(driver().device_name(name.data(), static_cast<int>(name.size()), 0), "cuDeviceGetName");
  require(driver().driver_version(&version), "cuDriverGetVersion");
  require(driver().device_attribute(&major, kMajor, 0), "cuDeviceGetAttribute");
  require(driver().device_attribute(&minor, kMinor, 0), "cuDeviceGetAttribute");
  return std::string(name.data()) + ", compute capability " + std::to_string(major) + "." +
         std::to_string(minor) + ", driver API " + std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

void use_gpu() {
  if (!why_no_gpu().empty()) throw std::runtime_error(why_no_gpu());
  require(driver().set_context(driver().context), "cuCtxSetCurrent");
}

std::size_t free_device_bytes() {
  use_gpu();
  std::size_t free = 0, total = 0;
  require(driver().memory_info(&free, &total), "cuMemGetInfo");
  return free;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : size_(bytes) {
  use_gpu();
  Address place = nullptr;
  require(driver().allocate(&place, bytes > 0 ? bytes : 1), "cuMemAlloc");
  data_ = static_cast<std::byte*>(place);
}

DeviceMemory::~DeviceMemory() { release(); }

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void DeviceMemory::release() {
  if (data_ == nullptr) return;
  driver().set_context(driver().context);
  driver().free(address(data_));
  data_ = nullptr;
}

GpuStream::GpuStream() {
  use_gpu();
  constexpr unsigned kNonBlocking = 1;
  require(driver().create_stream(&handle_, kNonBlocking), "cuStreamCreate");
}

GpuStream::~GpuStream() { driver().destroy_stream(handle_); }

Execution GpuStream::execution() const {
  Execution execution;
  execution.stream = handle_;
  return execution;
}

void GpuStream::wait() const { require(driver().wait(handle_), "cuStreamSynchronize"); }

void GpuStream::upload(void* device, const void* host, std::size_t bytes) const {
  if (bytes == 0) return;
  use_gpu();
  require(driver().to_device(address(device), host, bytes, handle_), "cuMemcpyHtoDAsync");
}

void GpuStream::download(void* host, const void* device, std::size_t bytes) const {
  use_gpu();
  if (bytes > 0) {
    require(driver().to_host(host, address(device), bytes, handle_), "cuMemcpyDtoHAsync");
  }
  wait();
}

void GpuStream::fill(void* device, std::uint8_t byte, std::size_t bytes) const {
  if (bytes == 0) return;
  use_gpu();
  require(driver().fill(address(device), byte, bytes, handle_), "cuMemsetD8Async");
}

Execution PoisonedWorkspace::execution(const GpuStream& stream) {
  taken_ = 0;
  Execution execution = stream.execution();
  execution.allocate = [this, &stream](std::size_t bytes) -> void* {
    if (taken_ == blocks_.size()) blocks_.emplace_back();
    DeviceMemory& block = blocks_[taken_++];
    if (block.size() < bytes) block = DeviceMemory(bytes);
    stream.fill(block.data(), 0xff, bytes);
    return block.data();
  };
  return execution;
}

GpuGraph::GpuGraph(const GpuStream& stream, const std::function<void(const Execution&)>& body) {
  use_gpu();
  // What this thread does that is unsafe breaks the capture; other threads have cases of their own.
  constexpr int kThreadLocalMode = 1;
  require(driver().begin_capture(stream.handle(), kThreadLocalMode), "cuStreamBeginCapture");
  try {
    body(stream.execution());
  } catch (...) {
    driver().end_capture(stream.handle(), &graph_);
    if (graph_ != nullptr) driver().destroy_graph(graph_);
    throw;
  }
  require(driver().end_capture(stream.handle(), &graph_), "cuStreamEndCapture");
  require(driver().instantiate(&executable_, graph_, 0), "cuGraphInstantiateWithFlags");
}

GpuGraph::~GpuGraph() {
  if (executable_ != nullptr) driver().destroy_executable(executable_);
  if (graph_ != nullptr) driver().destroy_graph(graph_);
}

void GpuGraph::replay(const GpuStream& stream) const {
  use_gpu();
  require(driver().launch_graph(executable_, stream.handle()), "cuGraphLaunch");
}

}  // namespace hpcattn::testkit
