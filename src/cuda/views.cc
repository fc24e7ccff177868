// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/views.h"

#include <algorithm>

#include "kernels/tile/convert.h"
#include "src/common/check.h"

namespace hpcattn::cuda {
namespace {

std::int64_t byte_stride(const Tensor& tensor, int dim) {
  return tensor.stride(dim) * size_bytes(tensor.dtype());
}

}  // namespace

bool has_aligned_pieces(const Tensor& tensor) {
  if (!tensor.defined() || tensor.rank() == 0) return false;
  const int last = tensor.rank() - 1;
  if (tensor.size(last) > 1 && tensor.stride(last) != 1) return false;
  const std::int64_t bytes = std::min<std::int64_t>(16, kLaneElements * size_bytes(tensor.dtype()));
  if (reinterpret_cast<std::uintptr_t>(tensor.data()) % static_cast<std::uintptr_t>(bytes) != 0) {
    return false;
  }
  for (int dim = 0; dim < last; ++dim) {
    if (tensor.size(dim) > 1 && byte_stride(tensor, dim) % bytes != 0) return false;
  }
  return true;
}

RowsView rows_view(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.data = tensor.data_as<char>(),
          .token_stride = byte_stride(tensor, 0),
          .head_stride = byte_stride(tensor, 1),
          .dtype = tensor.dtype(),
          .vectors = has_aligned_pieces(tensor)};
}

CacheView cache_view(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.data = tensor.data_as<char>(),
          .page_stride = byte_stride(tensor, 0),
          .place_stride = byte_stride(tensor, 1),
          .head_stride = byte_stride(tensor, 2),
          .dtype = tensor.dtype(),
          .vectors = has_aligned_pieces(tensor)};
}

IndexView index_view(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.data = tensor.data_as<char>(),
          .strides = {byte_stride(tensor, 0), tensor.rank() > 1 ? byte_stride(tensor, 1) : 0},
          .wide = tensor.dtype() == DType::kInt64};
}

ScaleView scale_view(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.data = tensor.data_as<char>(),
          .stride = tensor.size(0) == 1 ? 0 : byte_stride(tensor, 0)};
}

WeightView weight_view(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.data = tensor.data_as<char>(),
          .stride = byte_stride(tensor, 0),
          .dtype = tensor.dtype(),
          .vectors = has_aligned_pieces(tensor)};
}

std::string source_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "hpcattn::DType::kFloat32";
    case DType::kFloat16: return "hpcattn::DType::kFloat16";
    case DType::kBFloat16: return "hpcattn::DType::kBFloat16";
    case DType::kFloat8E4M3: return "hpcattn::DType::kFloat8E4M3";
    case DType::kFloat8E5M2: return "hpcattn::DType::kFloat8E5M2";
    default: throw InvalidArgument(message("cuda: no kernel takes dtype ", name(dtype), "."));
  }
}

}  // namespace hpcattn::cuda
