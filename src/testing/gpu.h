// SPDX-License-Identifier: Apache-2.0
// A GPU as tests see it: memory, a stream, graphs. It opens libcuda by itself, so that what holds
// the numbers of a test is not the code under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hpcattn/execution.h"

namespace hpcattn::testkit {

/// "" where GPU 0 can be used, else the reason, once and for all.
const std::string& why_no_gpu();

/// "NVIDIA H200, compute capability 9.0, driver API 13.0", for logs.
std::string gpu_name();

/// Makes the primary context of GPU 0 current for the calling thread. Throws std::runtime_error.
void use_gpu();

/// Bytes that are free on GPU 0.
std::size_t free_device_bytes();

/// Memory of GPU 0. What it holds at first is undefined.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void release();

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A stream of its own, not ordered with the default stream.
class GpuStream {
 public:
  GpuStream();
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  void* handle() const { return handle_; }
  Execution execution() const;

  /// Throws std::runtime_error when a kernel before it has failed.
  void wait() const;

  void upload(void* device, const void* host, std::size_t bytes) const;
  /// Waits for the copy.
  void download(void* host, const void* device, std::size_t bytes) const;
  void fill(void* device, std::uint8_t byte, std::size_t bytes) const;

 private:
  void* handle_ = nullptr;
};

/// What `body` puts on a stream, to be run again and again.
class GpuGraph {
 public:
  GpuGraph(const GpuStream& stream, const std::function<void(const Execution&)>& body);
  ~GpuGraph();
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  void replay(const GpuStream& stream) const;

 private:
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

/// Workspace of calls, used again by the next call; each time filled with 0xff first, which is NaN
/// and -1: a kernel must not read there what it has not written.
class PoisonedWorkspace {
 public:
  /// The stream's execution, whose next calls take their workspace here. One call at a time.
  Execution execution(const GpuStream& stream);

 private:
  std::vector<DeviceMemory> blocks_;  // the n-th allocation of a call takes the n-th
  std::size_t taken_ = 0;
};

/// One of the threads that run cases: a stream, and memory that is used again.
struct GpuLane {
  GpuStream stream;
  DeviceMemory memory;
  PoisonedWorkspace workspace;
  std::vector<std::uint8_t> image;
};

}  // namespace hpcattn::testkit
