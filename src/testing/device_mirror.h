// SPDX-License-Identifier: Apache-2.0
// The memory of host tensors, once more on a GPU: same bytes, same strides, and views of one memory
// stay views of one memory. Before and after each range lies a band of NaN that nobody may write,
// so a kernel that reads too far computes NaN and one that writes too far is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hpcattn/tensor.h"
#include "src/testing/gpu.h"

namespace hpcattn::testkit {

class DeviceMirror {
 public:
  /// `lane` outlives this; it serves one mirror at a time.
  DeviceMirror(GpuLane& lane, std::span<const Tensor> host);

  /// A tensor of the constructor's list, or one that lies within its memory, on the GPU.
  Tensor to_device(const Tensor& host) const;

  /// All bytes, gaps included, from the host to the GPU.
  void upload();

  /// And back; waits for the stream. "" when the bands are as they were, else where they are not.
  std::string download();

 private:
  /// Memory that some tensors share.
  struct Range {
    std::uint8_t* begin = nullptr;
    std::uint8_t* end = nullptr;
    std::string name;       // of the first tensor in it
    std::size_t image = 0;  // its place in the image of the lane's memory
    std::byte* device = nullptr;
    DeviceMemory own;  // where the lane's memory is not used
  };

  void collect(std::span<const Tensor> host);
  void place();
  const Range* find(const Tensor& host) const;
  std::string check_bands(const std::vector<std::uint8_t>& image) const;

  GpuLane* lane_;
  std::vector<Range> ranges_;
  std::size_t image_size_ = 0;
};

}  // namespace hpcattn::testkit
