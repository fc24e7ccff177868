// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/tensor.h"

#include <algorithm>

#include "src/common/check.h"

namespace hpcattn {

std::string to_string(Device device) {
  if (device.type == DeviceType::kCpu) return "cpu";
  return "cuda:" + std::to_string(device.index);
}

Tensor::Tensor(void* data, DType dtype, std::span<const std::int64_t> sizes,
               std::span<const std::int64_t> strides, Device device)
    : data_(data), dtype_(dtype), device_(device) {
  check(sizes.size() <= kMaxRank, "Tensor: rank ", sizes.size(), ", expected at most ", kMaxRank,
        ".");
  check(sizes.size() == strides.size(), "Tensor: ", sizes.size(), " sizes and ", strides.size(),
        " strides, expected as many of each.");
  for (std::int64_t size : sizes) check(size >= 0, "Tensor: size ", size, ", expected 0 or more.");
  rank_ = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  std::copy(strides.begin(), strides.end(), strides_.begin());
}

Tensor Tensor::contiguous(void* data, DType dtype, std::span<const std::int64_t> sizes,
                          Device device) {
  check(sizes.size() <= kMaxRank, "Tensor: rank ", sizes.size(), ", expected at most ", kMaxRank,
        ".");
  std::array<std::int64_t, kMaxRank> strides{};
  std::int64_t stride = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= sizes[dim];
  }
  return {data, dtype, sizes, std::span(strides).first(sizes.size()), device};
}

Tensor Tensor::contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> sizes,
                          Device device) {
  return contiguous(data, dtype, std::span(sizes.begin(), sizes.size()), device);
}

std::int64_t Tensor::num_elements() const {
  std::int64_t count = defined() ? 1 : 0;
  for (std::int64_t size : sizes()) count *= size;
  return count;
}

bool Tensor::is_contiguous() const {
  std::int64_t expected = 1;
  for (int dim = rank(); dim-- > 0;) {
    if (size(dim) != 1 && stride(dim) != expected) return false;
    expected *= size(dim);
  }
  return true;
}

Tensor Tensor::slice(int dim, std::int64_t start, std::int64_t length) const {
  check(start >= 0 && length >= 0 && start + length <= size(dim), "Tensor::slice: [", start, ", ",
        start + length, ") of dim ", dim, ", which has size ", size(dim), ".");
  Tensor view = *this;
  view.data_ = static_cast<char*>(data_) + start * stride(dim) * size_bytes(dtype_);
  view.sizes_[index_of(dim)] = length;
  return view;
}

Tensor Tensor::select(int dim, std::int64_t index) const {
  Tensor view = slice(dim, index, 1);
  const auto at = static_cast<std::ptrdiff_t>(index_of(dim));
  std::copy(view.sizes_.begin() + at + 1, view.sizes_.end(), view.sizes_.begin() + at);
  std::copy(view.strides_.begin() + at + 1, view.strides_.end(), view.strides_.begin() + at);
  --view.rank_;
  return view;
}

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "not given";
  std::string text(name(tensor.dtype()));
  text += '[';
  for (int dim = 0; dim < tensor.rank(); ++dim) {
    if (dim > 0) text += ", ";
    text += std::to_string(tensor.size(dim));
  }
  return text + "] on " + to_string(tensor.device());
}

}  // namespace hpcattn
