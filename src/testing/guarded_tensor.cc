// SPDX-License-Identifier: Apache-2.0
#include "src/testing/guarded_tensor.h"

#include <algorithm>
#include <cstring>

#include "src/cpu/reference/numbers.h"

namespace hpcattn::testkit {
namespace {

constexpr std::uint8_t kGapPattern = 0x5a;

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& sizes, std::int64_t row_gap) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= sizes[dim];
    if (dim + 1 == sizes.size()) stride += row_gap;
  }
  return strides;
}

std::int64_t extent(const std::vector<std::int64_t>& sizes,
                    const std::vector<std::int64_t>& strides) {
  std::int64_t last = 0;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 0) return 0;
    last += (sizes[dim] - 1) * strides[dim];
  }
  return last + 1;
}

template <typename T>
GuardedTensor ints(const std::vector<T>& values, DType dtype, GuardSide side) {
  GuardedTensor result(dtype, {static_cast<std::int64_t>(values.size())}, side);
  if (!values.empty()) {
    std::memcpy(result.tensor().data(), values.data(), values.size() * sizeof(T));
  }
  return result;
}

}  // namespace

GuardedTensor::GuardedTensor(DType dtype, std::vector<std::int64_t> sizes, GuardSide side,
                             std::int64_t row_gap) {
  const std::vector<std::int64_t> strides = row_major(sizes, row_gap);
  buffer_ =
      GuardedBuffer(static_cast<std::size_t>(extent(sizes, strides) * size_bytes(dtype)), side);
  tensor_ = Tensor(buffer_.data(), dtype, sizes, strides);
  poison();
}

GuardedTensor GuardedTensor::of_ints(const std::vector<std::int32_t>& values, GuardSide side) {
  return ints(values, DType::kInt32, side);
}

GuardedTensor GuardedTensor::of_ints(const std::vector<std::int64_t>& values, GuardSide side) {
  return ints(values, DType::kInt64, side);
}

GuardedTensor GuardedTensor::of_floats(const std::vector<double>& values, DType dtype,
                                       GuardSide side) {
  GuardedTensor result(dtype, {static_cast<std::int64_t>(values.size())}, side);
  for (std::size_t i = 0; i < values.size(); ++i) {
    reference::set_element(result, {static_cast<std::int64_t>(i)}, values[i]);
  }
  return result;
}

void GuardedTensor::fill_normal(Rng& rng, double deviation) {
  auto* base = static_cast<std::uint8_t*>(tensor_.data());
  const std::int64_t width = size_bytes(tensor_.dtype());
  for_each_index(tensor_, [&](const std::vector<std::int64_t>& index, std::int64_t) {
    const std::uint32_t code = reference::encode(deviation * rng.normal(), tensor_.dtype());
    std::memcpy(base + offset_of(tensor_, index) * width, &code, static_cast<std::size_t>(width));
  });
}

void GuardedTensor::poison() {
  if (tensor_.is_contiguous()) {
    std::memset(buffer_.data(), GuardedBuffer::kUnwritten, buffer_.size());
    return;
  }
  auto* base = static_cast<std::uint8_t*>(buffer_.data());
  const std::vector<bool> mine = covered();
  for (std::size_t byte = 0; byte < mine.size(); ++byte) {
    base[byte] = mine[byte] ? GuardedBuffer::kUnwritten : kGapPattern;
  }
}

bool GuardedTensor::surroundings_intact() const {
  if (tensor_.is_contiguous()) return buffer_.slack_intact();
  const auto* base = static_cast<const std::uint8_t*>(buffer_.data());
  const std::vector<bool> mine = covered();
  for (std::size_t byte = 0; byte < mine.size(); ++byte) {
    if (!mine[byte] && base[byte] != kGapPattern) return false;
  }
  return buffer_.slack_intact();
}

std::vector<bool> GuardedTensor::covered() const {
  std::vector<bool> mine(buffer_.size(), false);
  const auto width = static_cast<std::ptrdiff_t>(size_bytes(tensor_.dtype()));
  for_each_index(tensor_, [&](const std::vector<std::int64_t>& index, std::int64_t) {
    std::fill_n(mine.begin() + offset_of(tensor_, index) * width, width, true);
  });
  return mine;
}

std::int64_t offset_of(const Tensor& tensor, const std::vector<std::int64_t>& index) {
  std::int64_t offset = 0;
  for (std::size_t dim = 0; dim < index.size(); ++dim) {
    offset += index[dim] * tensor.stride(static_cast<int>(dim));
  }
  return offset;
}

}  // namespace hpcattn::testkit
