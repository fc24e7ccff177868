// SPDX-License-Identifier: Apache-2.0
// Memory that a class of the backend owns, on the CPU or a GPU, at an address that stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>

#include "hpcattn/backend/attention_backend.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// Freed with the last copy of the pointer. What it holds is undefined.
std::shared_ptr<void> allocate(Device device, std::size_t bytes);

/// Copies bytes of the host to a device's memory; they are there for every stream when it returns.
void upload(Device device, void* to, const void* from, std::size_t bytes);

/// The generation of a GPU; nothing for the CPU. Throws DeviceError where there is no such GPU.
std::optional<ComputeCapability> capability_of(Device device);

/// Gives out parts of one allocation, each at a multiple of 256 bytes.
class MemoryPlan {
 public:
  /// Room for a contiguous tensor; returns its place in bytes.
  std::size_t add(DType dtype, std::initializer_list<std::int64_t> sizes);
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// A contiguous tensor at a place of an allocation.
Tensor tensor_at(const std::shared_ptr<void>& memory, std::size_t place, DType dtype,
                 std::initializer_list<std::int64_t> sizes, Device device);

}  // namespace hpcattn
