// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/kv_cache.h"

#include "src/common/check.h"

namespace hpcattn {

std::string_view name(KvCacheLayout layout) {
  switch (layout) {
    case KvCacheLayout::kNhd: return "NHD";
    case KvCacheLayout::kHnd: return "HND";
    case KvCacheLayout::kPacked: return "packed";
  }
  return "unknown";
}

std::optional<DType> parse_kv_cache_dtype(std::string_view text, DType model_dtype) {
  if (text == "auto") return model_dtype;
  if (text == "float32") return DType::kFloat32;
  if (text == "float16") return DType::kFloat16;
  if (text == "bfloat16") return DType::kBFloat16;
  if (text == "fp8" || text == "fp8_e4m3") return DType::kFloat8E4M3;
  if (text == "fp8_e5m2") return DType::kFloat8E5M2;
  return std::nullopt;
}

KvCacheViews split_kv_cache(const Tensor& kv_cache, std::int64_t num_kv_heads,
                            std::int64_t head_dim, DType dtype) {
  check(kv_cache.defined(), "split_kv_cache: kv_cache is not given.");
  const bool bytes = kv_cache.dtype() == DType::kUInt8 && is_fp8(dtype);
  check(kv_cache.dtype() == dtype || bytes, "split_kv_cache: kv_cache has dtype ",
        name(kv_cache.dtype()), ", expected ", name(dtype), is_fp8(dtype) ? " or uint8." : ".");
  const Tensor cache(kv_cache.data(), dtype, kv_cache.sizes(), kv_cache.strides(),
                     kv_cache.device());

  if (cache.rank() == 5) {
    check(
        cache.size(1) == 2 && cache.size(3) == num_kv_heads && cache.size(4) == head_dim,
        "split_kv_cache: kv_cache is ", [&] { return to_string(kv_cache); },
        ", expected [num_pages, 2, page_size, ", num_kv_heads, ", ", head_dim, "].");
    return {.k = cache.select(1, 0), .v = cache.select(1, 1)};
  }

  check(
      cache.rank() == 4 && cache.size(1) == num_kv_heads && cache.size(3) == 2 * head_dim,
      "split_kv_cache: kv_cache is ", [&] { return to_string(kv_cache); },
      ", expected [num_pages, 2, page_size, ", num_kv_heads, ", ", head_dim, "] or [num_pages, ",
      num_kv_heads, ", page_size, ", 2 * head_dim, "].");
  const std::int64_t sizes[] = {cache.size(0), cache.size(2), cache.size(1), cache.size(3)};
  const std::int64_t strides[] = {cache.stride(0), cache.stride(2), cache.stride(1),
                                  cache.stride(3)};
  const Tensor tokens_first(cache.data(), dtype, sizes, strides, cache.device());
  return {.k = tokens_first.slice(3, 0, head_dim), .v = tokens_first.slice(3, head_dim, head_dim)};
}

}  // namespace hpcattn
