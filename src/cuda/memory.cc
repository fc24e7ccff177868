// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <limits>
#include <list>
#include <mutex>

#include "src/common/check.h"
#include "src/cuda/context.h"
#include "src/cuda/device.h"

namespace hpcattn::cuda {
namespace {

Stream stream_of(const Execution& execution) { return static_cast<Stream>(execution.stream); }

struct Dim {
  std::int64_t size;
  std::int64_t stride;
};

/// Dimensions of more than one element, by falling stride, neighbours without a gap joined.
std::vector<Dim> joined_dims(const Tensor& tensor) {
  std::vector<Dim> dims;
  for (int i = 0; i < tensor.rank(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) != 0)
      dims.push_back({tensor.size(i), tensor.stride(i)});
  }
  std::sort(dims.begin(), dims.end(),
            [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  std::vector<Dim> joined;
  for (const Dim& dim : dims) {
    if (!joined.empty() && joined.back().stride == dim.size * dim.stride) {
      joined.back() = {joined.back().size * dim.size, dim.stride};
    } else {
      joined.push_back(dim);
    }
  }
  return joined;
}

/// Rows of `width` elements side by side, `height` of them, a pitch of elements apart.
struct Plane {
  std::int64_t width = 1;
  std::int64_t height = 1;
  std::int64_t pitch = 1;
};

struct Fill {
  const Driver& driver;
  Stream stream;
  std::int64_t element_bytes;
  std::uint32_t pattern;

  void plane(DevicePointer address, const Plane& p) const {
    const std::size_t pitch = std::size_t(p.pitch * element_bytes);
    const std::size_t width = std::size_t(p.width);
    const std::size_t height = std::size_t(p.height);
    Result result = kSuccess;
    if (element_bytes == 1) {
      result =
          driver.fill8(address, pitch, static_cast<unsigned char>(pattern), width, height, stream);
    } else if (element_bytes == 2) {
      result = driver.fill16(address, pitch, static_cast<unsigned short>(pattern), width, height,
                             stream);
    } else {
      result = driver.fill32(address, pitch, pattern, width, height, stream);
    }
    check_driver(result, "cuda: a fill of device memory failed");
  }

  void all(DevicePointer address, std::span<const Dim> outer, const Plane& p) const {
    if (outer.empty()) return plane(address, p);
    for (std::int64_t i = 0; i < outer[0].size; ++i) {
      const std::int64_t offset = i * outer[0].stride * element_bytes;
      all(address + DevicePointer(offset), outer.subspan(1), p);
    }
  }
};

/// The last dimensions that one call of the driver can fill; they are taken off `dims`.
Plane take_plane(std::vector<Dim>& dims, std::int64_t element_bytes) {
  Plane p;
  if (!dims.empty() && dims.back().stride == 1) {
    p.width = p.pitch = dims.back().size;
    dims.pop_back();
  }
  constexpr std::int64_t kMostPitch = std::numeric_limits<std::int32_t>::max();
  if (!dims.empty() && dims.back().stride * element_bytes <= kMostPitch) {
    p.height = dims.back().size;
    p.pitch = dims.back().stride;
    dims.pop_back();
  }
  return p;
}

/// Copies a row of elements `stride` apart to host memory without gaps.
void copy_row(const Driver& d, const Tensor& row, std::byte* to, Stream stream) {
  const std::int64_t count = row.rank() == 0 ? 1 : row.size(0);
  const std::int64_t stride = row.rank() == 0 ? 1 : row.stride(0);
  const std::size_t element = std::size_t(size_bytes(row.dtype()));
  constexpr const char* kWhat = "cuda: a copy from device memory failed";
  if (stride == 1 || count == 1) {
    check_driver(d.copy_to_host(to, address_of(row.data()), std::size_t(count) * element, stream),
                 kWhat);
    return;
  }
  std::vector<std::byte> extent(std::size_t((count - 1) * stride + 1) * element);
  check_driver(d.copy_to_host(extent.data(), address_of(row.data()), extent.size(), stream), kWhat);
  check_driver(d.stream_synchronize(stream), kWhat);
  for (std::size_t i = 0; i < std::size_t(count); ++i) {
    std::memcpy(to + i * element, extent.data() + i * std::size_t(stride) * element, element);
  }
}

void copy_rows(const Driver& d, const Tensor& tensor, std::byte* to, Stream stream) {
  if (tensor.rank() <= 1) return copy_row(d, tensor, to, stream);
  const std::int64_t step =
      tensor.size(0) == 0 ? 0 : tensor.num_elements() / tensor.size(0) * size_bytes(tensor.dtype());
  for (std::int64_t i = 0; i < tensor.size(0); ++i) {
    copy_rows(d, tensor.select(0, i), to + i * step, stream);
  }
}

/// A graph reads the source of a copy at each replay, and may be replayed to the end of the
/// process.
const void* keep(const void* data, std::size_t bytes) {
  static std::mutex mutex;
  static auto& kept = *new std::list<std::vector<std::byte>>;
  const std::lock_guard lock(mutex);
  const auto* begin = static_cast<const std::byte*>(data);
  return kept.emplace_back(begin, begin + bytes).data();
}

}  // namespace

Workspace::Workspace(const Execution& execution, int device, std::size_t bytes)
    : stream_(execution.stream) {
  if (bytes == 0) return;
  if (execution.allocate) {
    data_ = execution.allocate(bytes);
    if (data_ == nullptr) {
      throw DeviceError(message("cuda: Execution::allocate gave no memory for ", bytes,
                                " bytes of workspace on device ", device, "."));
    }
    return;
  }
  const Driver& d = driver();
  if (!device_state(device).has_memory_pools || d.alloc_async == nullptr ||
      d.free_async == nullptr) {
    throw DeviceError(message("cuda: the driver has no stream-ordered memory for device ", device,
                              ". Pass Execution::allocate."));
  }
  DevicePointer address = 0;
  check_driver(d.alloc_async(&address, bytes, stream_of(execution)),
               message("cuda: no memory for ", bytes, " bytes of workspace on device ", device));
  data_ = pointer_of(address);
  from_driver_ = true;
}

Workspace::~Workspace() {
  if (from_driver_) driver().free_async(address_of(data_), static_cast<Stream>(stream_));
}

HostCopy::HostCopy(const Tensor& tensor, const Execution& execution) {
  check(!is_capturing(execution.stream),
        "check_values reads device memory back, which is not possible while the stream is captured "
        "into a graph. Turn it off for the capture.");
  bytes_.resize(std::size_t(tensor.num_elements() * size_bytes(tensor.dtype())));
  tensor_ = Tensor::contiguous(bytes_.data(), tensor.dtype(), tensor.sizes());
  if (bytes_.empty()) return;
  const Driver& d = driver();
  const DeviceGuard guard(tensor.device().index);
  const Stream stream = stream_of(execution);
  if (tensor.is_contiguous()) {
    check_driver(d.copy_to_host(bytes_.data(), address_of(tensor.data()), bytes_.size(), stream),
                 "cuda: a copy from device memory failed");
  } else {
    copy_rows(d, tensor, bytes_.data(), stream);
  }
  check_driver(d.stream_synchronize(stream), "cuda: waiting for the stream failed");
}

void fill_pattern(const Tensor& tensor, std::uint32_t pattern, const Execution& execution) {
  const std::int64_t element_bytes = size_bytes(tensor.dtype());
  check(element_bytes <= 4, "cuda: fill_pattern of ", to_string(tensor),
        ", expected elements of 1, 2 or 4 bytes.");
  if (tensor.num_elements() == 0) return;
  std::vector<Dim> dims = joined_dims(tensor);
  const Plane plane = take_plane(dims, element_bytes);
  const DeviceGuard guard(tensor.device().index);
  const Fill fill{driver(), stream_of(execution), element_bytes, pattern};
  fill.all(address_of(tensor.data()), dims, plane);
}

void copy_to_device(void* device_data, const void* host_data, std::size_t bytes, int device,
                    const Execution& execution) {
  if (bytes == 0) return;
  const DeviceGuard guard(device);
  const void* source = is_capturing(execution.stream) ? keep(host_data, bytes) : host_data;
  check_driver(
      driver().copy_to_device(address_of(device_data), source, bytes, stream_of(execution)),
      "cuda: a copy to device memory failed");
}

}  // namespace hpcattn::cuda
