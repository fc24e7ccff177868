// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/tensor_map.h"

#include "src/cuda/driver.h"

namespace hpcattn::cuda {
namespace {

constexpr int kRank = 5;
// CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion.
constexpr int kUInt8 = 0;
constexpr int kUInt16 = 1;
constexpr int kSwizzle64 = 2;
constexpr int kSwizzle128 = 3;
// More than is asked for costs 4 % of the bandwidth (docs/experiments/decode.md).
constexpr int kPromote128 = 2;

}  // namespace

bool has_tensor_maps() { return driver().encode_tensor_map != nullptr; }

Tensor as_one_page(const Tensor& packed) {
  const std::int64_t sizes[] = {1, packed.size(0), packed.size(1), packed.size(2)};
  const std::int64_t strides[] = {0, packed.stride(0), packed.stride(1), packed.stride(2)};
  return {packed.data(), packed.dtype(), sizes, strides, packed.device()};
}

bool tensor_map_takes(const Tensor& cache, int line_bytes) {
  const std::int64_t element = size_bytes(cache.dtype());
  if (cache.num_elements() == 0) return false;
  if (cache.size(3) * element % line_bytes != 0) return false;
  if (reinterpret_cast<std::uintptr_t>(cache.data()) % 16 != 0) return false;
  for (int dim = 0; dim < 3; ++dim) {
    const std::int64_t bytes = cache.stride(dim) * element;
    if (cache.size(dim) > 1 && (bytes <= 0 || bytes % 16 != 0 || bytes >= std::int64_t{1} << 40)) {
      return false;
    }
  }
  return true;
}

TensorMap page_map(const Tensor& cache, int box_tokens, BoxLines box_lines, int line_bytes) {
  const std::int64_t element = size_bytes(cache.dtype());
  const auto lines = static_cast<std::uint64_t>(cache.size(3) * element / line_bytes);
  // A dim of one entry may have any stride, and the driver wants one that it can check.
  const auto stride = [&](int dim) {
    return cache.size(dim) > 1 ? static_cast<std::uint64_t>(cache.stride(dim) * element)
                               : static_cast<std::uint64_t>(line_bytes);
  };
  const std::uint64_t sizes[kRank] = {
      static_cast<std::uint64_t>(line_bytes / element), static_cast<std::uint64_t>(cache.size(1)),
      lines, static_cast<std::uint64_t>(cache.size(2)), static_cast<std::uint64_t>(cache.size(0))};
  const std::uint64_t strides[kRank - 1] = {stride(1), static_cast<std::uint64_t>(line_bytes),
                                            stride(2), stride(0)};
  const std::uint32_t box[kRank] = {
      static_cast<std::uint32_t>(line_bytes / element), static_cast<std::uint32_t>(box_tokens),
      box_lines == BoxLines::kAll ? static_cast<std::uint32_t>(lines) : 1, 1, 1};
  const std::uint32_t steps[kRank] = {1, 1, 1, 1, 1};
  TensorMap map;
  check_driver(
      driver().encode_tensor_map(
          &map, element == 1 ? kUInt8 : kUInt16, kRank, cache.data(), sizes, strides, box, steps,
          /*interleave=*/0, line_bytes == 128 ? kSwizzle128 : kSwizzle64, kPromote128, /*fill=*/0),
      "cuTensorMapEncodeTiled of a KV cache");
  return map;
}

}  // namespace hpcattn::cuda
