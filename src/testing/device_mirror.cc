// SPDX-License-Identifier: Apache-2.0
#include "src/testing/device_mirror.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <tuple>

#include "src/testing/guarded_buffer.h"

namespace hpcattn::testkit {
namespace {

constexpr std::size_t kBand = 64 << 10;
constexpr std::size_t kAlignment = 256;  // device addresses equal host addresses modulo this

/// Under compute-sanitizer each range is an allocation of its own, whose ends the tool watches.
bool apart() {
  static const bool value = std::getenv("HPCATTN_TEST_APART") != nullptr;
  return value;
}

/// Elements from the first to behind the last one.
std::int64_t extent(const Tensor& tensor) {
  std::int64_t last = 0;
  for (int dim = 0; dim < tensor.rank(); ++dim) {
    if (tensor.size(dim) == 0) return 0;
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return last + 1;
}

std::size_t misalignment(const std::uint8_t* place) {
  return reinterpret_cast<std::uintptr_t>(place) % kAlignment;
}

}  // namespace

DeviceMirror::DeviceMirror(GpuLane& lane, std::span<const Tensor> host) : lane_(&lane) {
  collect(host);
  place();
}

void DeviceMirror::collect(std::span<const Tensor> host) {
  for (const Tensor& tensor : host) {
    if (!tensor.defined() || extent(tensor) == 0) continue;
    Range range;
    range.begin = tensor.data_as<std::uint8_t>();
    range.end = range.begin + extent(tensor) * size_bytes(tensor.dtype());
    range.name = to_string(tensor);
    ranges_.push_back(std::move(range));
  }
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::vector<Range> merged;
  for (Range& range : ranges_) {
    // Touching ones too: a pool of one page has V right behind K.
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(std::move(range));
    }
  }
  ranges_ = std::move(merged);
}

void DeviceMirror::place() {
  if (apart()) {
    for (Range& range : ranges_) {
      const std::size_t offset = misalignment(range.begin);
      range.own = DeviceMemory(offset + static_cast<std::size_t>(range.end - range.begin));
      range.device = range.own.data() + offset;
    }
    return;
  }
  std::size_t at = kBand;
  for (Range& range : ranges_) {
    range.image = at + misalignment(range.begin);
    const std::size_t end = range.image + static_cast<std::size_t>(range.end - range.begin);
    at = (end + kBand + kAlignment - 1) / kAlignment * kAlignment;
  }
  image_size_ = at;
  if (lane_->memory.size() < image_size_) {
    lane_->memory = DeviceMemory();  // the old one first: both may not fit
    lane_->memory = DeviceMemory(std::max(image_size_, std::size_t{16} << 20));
  }
  for (Range& range : ranges_) range.device = lane_->memory.data() + range.image;
}

const DeviceMirror::Range* DeviceMirror::find(const Tensor& host) const {
  const auto* begin = host.data_as<std::uint8_t>();
  for (const Range& range : ranges_) {
    if (begin >= range.begin && begin < range.end) return &range;
  }
  return nullptr;
}

Tensor DeviceMirror::to_device(const Tensor& host) const {
  if (!host.defined()) return host;
  const Device gpu{DeviceType::kCuda, 0};
  const Range* range = find(host);
  if (range == nullptr) {
    if (extent(host) > 0) throw std::logic_error(to_string(host) + " is not in the mirror");
    // Of no elements: any address that is none of null.
    void* anywhere = ranges_.empty() ? nullptr : ranges_.front().device;
    return {anywhere, host.dtype(), host.sizes(), host.strides(), gpu};
  }
  std::byte* data = range->device + (host.data_as<std::uint8_t>() - range->begin);
  return {data, host.dtype(), host.sizes(), host.strides(), gpu};
}

void DeviceMirror::upload() {
  if (apart()) {
    for (const Range& range : ranges_) {
      lane_->stream.upload(range.device, range.begin,
                           static_cast<std::size_t>(range.end - range.begin));
    }
    return;
  }
  lane_->image.assign(image_size_, GuardedBuffer::kUnwritten);
  for (const Range& range : ranges_) {
    std::memcpy(lane_->image.data() + range.image, range.begin,
                static_cast<std::size_t>(range.end - range.begin));
  }
  lane_->stream.upload(lane_->memory.data(), lane_->image.data(), image_size_);
}

std::string DeviceMirror::download() {
  if (apart()) {
    for (const Range& range : ranges_) {
      lane_->stream.download(range.begin, range.device,
                             static_cast<std::size_t>(range.end - range.begin));
    }
    return "";
  }
  lane_->image.resize(image_size_);
  lane_->stream.download(lane_->image.data(), lane_->memory.data(), image_size_);
  for (const Range& range : ranges_) {
    std::memcpy(range.begin, lane_->image.data() + range.image,
                static_cast<std::size_t>(range.end - range.begin));
  }
  return check_bands(lane_->image);
}

std::string DeviceMirror::check_bands(const std::vector<std::uint8_t>& image) const {
  std::size_t begin = 0;
  std::string before = "the start";
  for (std::size_t i = 0; i <= ranges_.size(); ++i) {
    const bool last = i == ranges_.size();
    const std::size_t end = last ? image_size_ : ranges_[i].image;
    for (std::size_t at = begin; at < end; ++at) {
      if (image[at] == GuardedBuffer::kUnwritten) continue;
      return "the GPU wrote " + std::to_string(at - begin) + " bytes behind " + before + " and " +
             std::to_string(end - at) + " before " + (last ? "the end" : ranges_[i].name);
    }
    if (last) break;
    begin = end + static_cast<std::size_t>(ranges_[i].end - ranges_[i].begin);
    before = ranges_[i].name;
  }
  return "";
}

}  // namespace hpcattn::testkit
