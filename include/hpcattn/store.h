// SPDX-License-Identifier: Apache-2.0
// Writing K and V into the pages of a KV cache.
#pragma once

#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// Token t goes to page slot_mapping[t] / page_size, place slot_mapping[t] % page_size. -1 is not
/// written. An fp8 cache stores saturate(x / scale), rounded to nearest even.
struct StoreKvArgs {
  Tensor k;        // [num_tokens, num_kv_heads, head_dim] float32, float16 or bfloat16
  Tensor v;        // as k
  Tensor k_cache;  // [num_pages, page_size, num_kv_heads, head_dim], any strides; k's dtype or fp8
  Tensor v_cache;  // as k_cache
  Tensor slot_mapping;  // [num_tokens] int32 or int64; may be shorter than k: the rest is padding
  Tensor k_scale;       // float32 [1] or [num_kv_heads], > 0; required for an fp8 cache
  Tensor v_scale;
};

/// Throws InvalidArgument or Unsupported, and has then written nothing.
void store_kv(const StoreKvArgs& args, const Execution& execution = {});

}  // namespace hpcattn
