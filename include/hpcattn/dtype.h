// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, and their names.
#pragma once

#include <string_view>

#include "hpcattn/dtype_id.h"

namespace hpcattn {

/// "float32", "bfloat16", "float8_e4m3", ...: torch's names without its variants.
constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat8E4M3: return "float8_e4m3";
    case DType::kFloat8E5M2: return "float8_e5m2";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
    case DType::kUInt8: return "uint8";
  }
  return "unknown";
}

}  // namespace hpcattn
