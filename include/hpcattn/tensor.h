// SPDX-License-Identifier: Apache-2.0
// Tensor: a view of memory that the caller owns. It holds a pointer, a dtype, sizes and strides,
// and is cheap to copy. A default-constructed one is "not given": that is how optional tensors are
// passed.
//
//   std::vector<float> data(6);
//   Tensor t = Tensor::contiguous(data.data(), DType::kFloat32, {2, 3});
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "hpcattn/dtype.h"

namespace hpcattn {

enum class DeviceType : std::uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu", "cuda:1".
std::string to_string(Device device);

class Tensor {
 public:
  static constexpr int kMaxRank = 6;

  Tensor() = default;

  /// Strides count elements. Throws InvalidArgument for a rank over kMaxRank, sizes and strides of
  /// unlike ranks, or a negative size.
  Tensor(void* data, DType dtype, std::span<const std::int64_t> sizes,
         std::span<const std::int64_t> strides, Device device = {});

  /// Row-major, without gaps.
  static Tensor contiguous(void* data, DType dtype, std::span<const std::int64_t> sizes,
                           Device device = {});
  static Tensor contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> sizes,
                           Device device = {});

  bool defined() const { return rank_ >= 0; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  int rank() const { return rank_ < 0 ? 0 : rank_; }
  std::int64_t size(int dim) const { return sizes_[index_of(dim)]; }
  std::int64_t stride(int dim) const { return strides_[index_of(dim)]; }
  std::span<const std::int64_t> sizes() const { return {sizes_.data(), std::size_t(rank())}; }
  std::span<const std::int64_t> strides() const { return {strides_.data(), std::size_t(rank())}; }
  std::int64_t num_elements() const;
  bool is_contiguous() const;

  void* data() const { return data_; }
  template <typename T>
  T* data_as() const {
    return static_cast<T*>(data_);
  }

  /// A view of `length` entries from `start` along `dim`. Throws InvalidArgument when out of range.
  Tensor slice(int dim, std::int64_t start, std::int64_t length) const;

  /// A view without dimension `dim`, at its entry `index`.
  Tensor select(int dim, std::int64_t index) const;

 private:
  std::size_t index_of(int dim) const { return std::size_t(dim < 0 ? dim + rank_ : dim); }

  void* data_ = nullptr;
  std::array<std::int64_t, kMaxRank> sizes_{};
  std::array<std::int64_t, kMaxRank> strides_{};
  int rank_ = -1;
  DType dtype_ = DType::kFloat32;
  Device device_{};
};

/// "bfloat16[4, 8, 128] on cpu", or "not given".
std::string to_string(const Tensor& tensor);

}  // namespace hpcattn
