// SPDX-License-Identifier: Apache-2.0
#include "fuzz/workbench.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "src/testing/guarded_buffer.h"

namespace hpcattn::fuzz {
namespace {

using testkit::GuardedBuffer;
using testkit::GuardSide;

constexpr std::size_t kSlotBytes = 1 << 18;
constexpr std::size_t kSlots = 48;
constexpr std::size_t kWatched = 1 << 14;  // bytes at a slot's end, where its tensor lies

/// Made once: a mapping for each tensor of each input would take most of the time.
GuardedBuffer& slot(std::size_t index) {
  static std::vector<GuardedBuffer>* slots = [] {
    auto* made = new std::vector<GuardedBuffer>;
    for (std::size_t i = 0; i < kSlots; ++i) made->emplace_back(kSlotBytes, GuardSide::kAfter);
    return made;
  }();
  return (*slots)[index % kSlots];
}

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return strides;
}

/// Bytes from the lowest to one past the highest element, and where element 0 stands in it.
struct Extent {
  std::int64_t bytes = 0;
  std::int64_t first = 0;
};

Extent extent_of(DType dtype, const std::vector<std::int64_t>& sizes,
                 const std::vector<std::int64_t>& strides) {
  const std::int64_t width = size_bytes(dtype);
  Extent extent{width, 0};
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 0) return {0, 0};
    const std::int64_t reach = (sizes[dim] - 1) * strides[dim] * width;
    extent.bytes += std::abs(reach);
    if (reach < 0) extent.first -= reach;
  }
  return extent;
}

std::uint64_t hash_of(const std::uint8_t* memory, std::size_t size) {
  std::uint64_t hash = size;
  std::size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, memory + at, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  }
  for (; at < size; ++at) hash = (hash ^ memory[at]) * 0x9e3779b97f4a7c15ULL;
  return hash;
}

}  // namespace

Workbench::Workbench(Bytes& bytes) : bytes_(bytes) {}

Tensor Workbench::floats(DType dtype, std::vector<std::int64_t> sizes) {
  Tensor tensor = place(dtype, std::move(sizes), true);
  fill(tensor);
  return tensor;
}

Tensor Workbench::output(DType dtype, std::vector<std::int64_t> sizes) {
  Tensor tensor = floats(dtype, std::move(sizes));
  for (std::size_t i = 0; i < kSlots; ++i) {
    const auto* base = static_cast<const std::uint8_t*>(slot(i).data());
    const auto* at = tensor.data_as<const std::uint8_t>();
    // More than the elements, so that a write beside them counts too.
    if (at >= base && at < base + kSlotBytes)
      outputs_.push_back({base + kSlotBytes - kWatched, kWatched, 0});
  }
  return tensor;
}

Tensor Workbench::integers(std::vector<std::int64_t> values, std::vector<std::int64_t> sizes,
                           DType dtype) {
  if (!values.empty() && bytes_.chance(12)) {
    constexpr std::int64_t kMax32 = std::numeric_limits<std::int32_t>::max();
    constexpr std::int64_t kMin32 = std::numeric_limits<std::int32_t>::min();
    const auto at = static_cast<std::size_t>(bytes_.byte()) % values.size();
    std::int64_t& value = values[at];
    value = bytes_.pick<std::int64_t>({value + 1, value - 1, -1, -2, 0, 1, 1000, kMax32, kMin32,
                                       kMax32 - 1, std::int64_t{1} << 62, -value});
  }
  Tensor tensor = place(dtype, std::move(sizes), true);
  fill(tensor);
  if (tensor.dtype() != dtype || tensor.data() == nullptr) return tensor;
  // In the order of memory; a spoiled tensor may hold fewer of them, or noise past them.
  const auto count = std::min<std::int64_t>(tensor.num_elements(), std::int64_t(values.size()));
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (int dim = tensor.rank(); dim-- > 0;) {
      offset += rest % tensor.size(dim) * tensor.stride(dim);
      rest /= tensor.size(dim);
    }
    const std::int64_t value = values[static_cast<std::size_t>(i)];
    if (dtype == DType::kInt64) {
      tensor.data_as<std::int64_t>()[offset] = value;
    } else {
      tensor.data_as<std::int32_t>()[offset] = static_cast<std::int32_t>(value);
    }
  }
  return tensor;
}

Tensor Workbench::scales(std::vector<std::int64_t> sizes) {
  Tensor tensor = place(DType::kFloat32, std::move(sizes), true);
  fill(tensor);
  if (tensor.dtype() != DType::kFloat32 || tensor.data() == nullptr || tensor.rank() == 0)
    return tensor;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (int dim = tensor.rank(); dim-- > 0;) {
      offset += rest % tensor.size(dim) * tensor.stride(dim);
      rest /= tensor.size(dim);
    }
    tensor.data_as<float>()[offset] = 0.5F + static_cast<float>(i % 7);
  }
  if (tensor.num_elements() > 0 && bytes_.chance(8)) {
    tensor.data_as<float>()[0] =
        bytes_.pick({0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(),
                     std::numeric_limits<float>::infinity(), 1e-45F, 3e38F});
  }
  return tensor;
}

Tensor Workbench::words(std::int64_t count) { return place(DType::kInt32, {count}, false); }

void Workbench::begin_call() {
  for (Output& output : outputs_) output.hash = hash_of(output.memory, output.size);
}

bool Workbench::outputs_changed() const {
  return std::any_of(outputs_.begin(), outputs_.end(), [](const Output& output) {
    return hash_of(output.memory, output.size) != output.hash;
  });
}

Tensor Workbench::place(DType dtype, std::vector<std::int64_t> sizes, bool spoil) {
  const bool spoil_this = spoil && bytes_.chance(8);
  Tensor tensor =
      spoil_this ? spoiled(dtype, std::move(sizes)) : lay_out(dtype, sizes, row_major(sizes));
  made_.push_back(tensor);
  return tensor;
}

Tensor Workbench::spoiled(DType dtype, std::vector<std::int64_t> sizes) {
  std::vector<std::int64_t> strides = row_major(sizes);
  const std::size_t dim =
      sizes.empty() ? 0 : static_cast<std::size_t>(bytes_.byte()) % sizes.size();
  switch (bytes_.integer(0, 11)) {
    case 0: return {};  // not given
    case 1:
      dtype = bytes_.pick({DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                           DType::kFloat8E5M2, DType::kInt32, DType::kInt64, DType::kUInt8});
      break;
    case 2:
      if (!sizes.empty()) sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(dim));
      strides = row_major(sizes);
      break;
    case 3:
      if (sizes.size() < Tensor::kMaxRank) sizes.insert(sizes.begin(), bytes_.integer(0, 2));
      strides = row_major(sizes);
      break;
    case 4:
      if (!sizes.empty()) {
        sizes[dim] = std::max<std::int64_t>(
            0, sizes[dim] + bytes_.pick<std::int64_t>({-1, 1, -1000, 2, 64}));
      }
      strides = row_major(sizes);
      break;
    case 5:  // a gap, or entries over each other
      if (!sizes.empty()) strides[dim] += bytes_.integer(-3, 40);
      break;
    case 6:
      if (!sizes.empty()) strides[dim] = bytes_.pick<std::int64_t>({0, 1, 2, -1, -strides[dim]});
      break;
    case 7:
      if (sizes.size() >= 2) std::swap(strides[sizes.size() - 1], strides[sizes.size() - 2]);
      break;
    case 8: {
      const Tensor right = lay_out(dtype, sizes, strides);
      return {right.data(), dtype, right.sizes(), right.strides(), {DeviceType::kCuda, 1}};
    }
    case 9: return {nullptr, dtype, sizes, strides};
    case 10:  // the same memory as another tensor's
      if (!made_.empty()) {
        const Tensor& other = made_[static_cast<std::size_t>(bytes_.byte()) % made_.size()];
        if (other.data() != nullptr && extent_of(dtype, sizes, strides).bytes <= 2048) {
          // Any slot has that much behind each of its addresses but the last ones.
          return other.dtype() == dtype && other.rank() == int(sizes.size())
                     ? other
                     : lay_out(dtype, sizes, strides);
        }
      }
      break;
    default:  // negative strides, all dims
      for (std::size_t i = 0; i < sizes.size(); ++i) strides[i] = -strides[i];
  }
  return lay_out(dtype, sizes, strides);
}

Tensor Workbench::lay_out(DType dtype, const std::vector<std::int64_t>& sizes,
                          const std::vector<std::int64_t>& strides) {
  const Extent extent = extent_of(dtype, sizes, strides);
  if (extent.bytes > std::int64_t{kSlotBytes}) {  // would not exist: take less of everything
    std::vector<std::int64_t> smaller(sizes.size(), 1);
    return lay_out(dtype, smaller, row_major(smaller));
  }
  const GuardedBuffer& memory = slot(next_slot_++);
  auto* base = static_cast<std::uint8_t*>(memory.data());
  auto* begin = base + kSlotBytes - extent.bytes;  // up to the guard page
  return {begin + extent.first, dtype, sizes, strides};
}

void Workbench::fill(const Tensor& tensor) {
  if (!tensor.defined() || tensor.data() == nullptr || tensor.num_elements() == 0) return;
  const std::vector<std::int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  const std::vector<std::int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  const Extent extent = extent_of(tensor.dtype(), sizes, strides);
  std::uint8_t* begin = tensor.data_as<std::uint8_t>() - extent.first;
  std::int64_t at = 0;
  for (; at + 8 <= extent.bytes; at += 8) {
    noise_ ^= noise_ << 13;
    noise_ ^= noise_ >> 7;
    noise_ ^= noise_ << 17;
    std::memcpy(begin + at, &noise_, 8);
  }
  for (; at < extent.bytes; ++at) begin[at] = static_cast<std::uint8_t>(noise_ >> (at % 8 * 8));
}

}  // namespace hpcattn::fuzz
