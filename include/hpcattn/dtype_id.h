// SPDX-License-Identifier: Apache-2.0
// Element types of tensors: the part of dtype.h that device code reads too.
#pragma once

#include <cstdint>

namespace hpcattn {

enum class DType : std::uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3,  // "fn": no infinity, 448 is the largest
  kFloat8E5M2,
  kInt32,
  kInt64,
  kUInt8,
};

/// Bytes of one element.
constexpr std::int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kInt64: return 8;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kUInt8: return 1;
  }
  return 0;
}

constexpr bool is_fp8(DType dtype) {
  return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2;
}

/// float32, float16 or bfloat16.
constexpr bool is_wide_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

constexpr bool is_float(DType dtype) { return is_wide_float(dtype) || is_fp8(dtype); }

constexpr bool is_index(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

}  // namespace hpcattn
