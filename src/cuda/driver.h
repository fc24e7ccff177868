// SPDX-License-Identifier: Apache-2.0
// The functions of libcuda.so.1 that we use, by their names there, and the few types that they
// need. Nothing of a CUDA toolkit is read: the driver's binary interface is stable.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "src/cuda/shared_library.h"

namespace hpcattn::cuda {

using Result = int;  // CUresult
inline constexpr Result kSuccess = 0;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kInvalidPtx = 218;
inline constexpr Result kUnsupportedPtxVersion = 222;

using DeviceHandle = int;                  // CUdevice
using DevicePointer = unsigned long long;  // CUdeviceptr
inline void* pointer_of(DevicePointer address) { return std::bit_cast<void*>(address); }
inline DevicePointer address_of(const void* data) { return std::bit_cast<DevicePointer>(data); }
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;

// CUdevice_attribute
enum DeviceAttribute : int {
  kNumSms = 16,
  kL2Bytes = 38,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kSharedBytesPerSm = 81,
  kSharedBytesPerCta = 97,  // with opt-in
  kHasMemoryPools = 115,
};
// CUfunction_attribute
enum FunctionAttribute : int { kMaxDynamicSharedBytes = 8 };
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostAllocMapped = 2;
inline constexpr int kRelaxedCapture = 2;             // CUstreamCaptureMode
inline constexpr int kProgrammaticSerialization = 6;  // of CUlaunchAttributeID

struct LaunchAttribute {  // CUlaunchAttribute
  int id;
  char pad[4];
  union {
    char bytes[64];
    int programmatic_serialization;
  } value;
};
struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3];
  unsigned cta[3];
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

struct Driver {
  SharedLibrary library;
  int version = 0;  // 13000: knows CUDA 13.0

  Result (*init)(unsigned flags) = nullptr;
  Result (*driver_version)(int*) = nullptr;
  Result (*error_name)(Result, const char**) = nullptr;
  Result (*error_text)(Result, const char**) = nullptr;
  Result (*device_count)(int*) = nullptr;
  Result (*device_get)(DeviceHandle*, int index) = nullptr;
  Result (*device_name)(char*, int bytes, DeviceHandle) = nullptr;
  Result (*device_attribute)(int*, int attribute, DeviceHandle) = nullptr;
  Result (*device_memory)(std::size_t*, DeviceHandle) = nullptr;
  Result (*primary_context)(Context*, DeviceHandle) = nullptr;
  Result (*current_context)(Context*) = nullptr;
  Result (*push_context)(Context) = nullptr;
  Result (*pop_context)(Context*) = nullptr;
  Result (*module_load)(Module*, const void* image) = nullptr;
  Result (*module_unload)(Module) = nullptr;
  Result (*module_function)(Function*, Module, const char* name) = nullptr;
  Result (*set_function_attribute)(Function, int attribute, int value) = nullptr;
  Result (*launch)(Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned cta_x,
                   unsigned cta_y, unsigned cta_z, unsigned shared_bytes, Stream, void** params,
                   void** extra) = nullptr;
  Result (*host_alloc)(void**, std::size_t, unsigned flags) = nullptr;
  Result (*host_device_pointer)(DevicePointer*, void*, unsigned flags) = nullptr;
  Result (*stream_synchronize)(Stream) = nullptr;
  Result (*copy_to_host)(void*, DevicePointer, std::size_t, Stream) = nullptr;
  Result (*copy_to_device)(DevicePointer, const void*, std::size_t, Stream) = nullptr;
  Result (*fill8)(DevicePointer, std::size_t pitch, unsigned char, std::size_t width,
                  std::size_t height, Stream) = nullptr;
  Result (*fill16)(DevicePointer, std::size_t pitch, unsigned short, std::size_t width,
                   std::size_t height, Stream) = nullptr;
  Result (*fill32)(DevicePointer, std::size_t pitch, unsigned, std::size_t width,
                   std::size_t height, Stream) = nullptr;
  // Of newer drivers; null where there is none.
  Result (*launch_ex)(const LaunchConfig*, Function, void** params, void** extra) = nullptr;
  Result (*function_load)(Function) = nullptr;
  Result (*is_capturing)(Stream, int* status) = nullptr;
  Result (*exchange_capture_mode)(int* mode) = nullptr;
  Result (*alloc_async)(DevicePointer*, std::size_t, Stream) = nullptr;
  Result (*free_async)(DevicePointer, Stream) = nullptr;
  Result (*encode_tensor_map)(void* map, int data_type, unsigned rank, void* address,
                              const std::uint64_t* sizes, const std::uint64_t* strides,
                              const std::uint32_t* box, const std::uint32_t* element_strides,
                              int interleave, int swizzle, int l2_promotion, int fill) = nullptr;
  Result (*alloc)(DevicePointer*, std::size_t) = nullptr;
  Result (*free)(DevicePointer) = nullptr;
};

/// Opened and initialised at the first call. Throws DeviceError that says what was tried and what
/// is needed; also in a child process of one that has used the driver, which CUDA does not support.
const Driver& driver();

/// While alive, this thread may load modules and allocate although some stream is being captured.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kRelaxedCapture;
};

/// Whether work given to the stream is recorded into a graph.
bool is_capturing(void* stream);

/// Throws DeviceError "WHAT: CUDA_ERROR_...: text" where `result` is one.
void check_driver(Result result, const std::string& what);
inline void check_driver(Result result, const char* what) {
  if (result != kSuccess) [[unlikely]]
    check_driver(result, std::string(what));
}

/// "CUDA_ERROR_ILLEGAL_ADDRESS (700, an illegal memory access was encountered)."; of errors that an
/// earlier kernel caused, also what to do.
std::string describe(Result result);

/// "12.4" for 12040.
std::string cuda_version(int version);

}  // namespace hpcattn::cuda
