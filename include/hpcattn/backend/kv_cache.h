// SPDX-License-Identifier: Apache-2.0
// How an engine's KV cache tensor lies in memory, and K and V as views of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "hpcattn/tensor.h"

namespace hpcattn {

/// The forms of a layer's KV cache that engines allocate. Operators take any strides, so this says
/// which shape and order to allocate, not which ones can be read.
enum class KvCacheLayout : std::uint8_t {
  kNhd,     // [num_pages, 2, page_size, num_kv_heads, head_dim], memory in that order
  kHnd,     // the same shape; in memory the heads come before the tokens of a page
  kPacked,  // [num_pages, num_kv_heads, page_size, 2 * head_dim]: K, then V, in the last dim
};

/// "NHD", "HND" or "packed".
std::string_view name(KvCacheLayout layout);

/// The element type behind an engine's name for it: "auto" (the model's), "float32", "float16",
/// "bfloat16", "fp8" and "fp8_e4m3", "fp8_e5m2". Nothing for another name.
std::optional<DType> parse_kv_cache_dtype(std::string_view text, DType model_dtype);

/// K and V as operators take them: [num_pages, page_size, num_kv_heads, head_dim].
struct KvCacheViews {
  Tensor k;
  Tensor v;
};

/// Views of a cache of any of the forms above; rank 5 or 4 tells which. `dtype` is what is stored;
/// a tensor of bytes (uint8) is taken for an fp8 one. Nothing is copied. Throws InvalidArgument.
KvCacheViews split_kv_cache(const Tensor& kv_cache, std::int64_t num_kv_heads,
                            std::int64_t head_dim, DType dtype);

}  // namespace hpcattn
