// SPDX-License-Identifier: Apache-2.0
// What a launch of store_kv's kernel passes.
#pragma once

#include <cstdint>

#include "kernels/fused/views.h"
#include "kernels/tile/fast_divide.h"

namespace hpcattn {

struct StoreParams {
  RowsView inputs[2];   // k, v: [num_tokens or more, num_heads, head_dim]
  CacheView caches[2];  // [num_pages, page_size, num_heads, head_dim]
  ScaleView scales[2];  // of fp8 caches
  IndexView slots;      // [num_tokens]
  std::int64_t num_tokens = 0;
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;
  std::int32_t num_heads = 0;
  std::int32_t pieces = 0;  // of 8 elements, in a row of head_dim
  FastDivide per_row;       // by pieces
  FastDivide per_token;     // by 2 * num_heads * pieces
  Fault* faults = nullptr;
};

}  // namespace hpcattn
