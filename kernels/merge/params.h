// SPDX-License-Identifier: Apache-2.0
// What a launch of merge_partials' kernel passes. Strides count bytes.
#pragma once

#include <cstdint>

namespace hpcattn {

/// [num_tokens, num_heads, head_dim] of the spec's dtype, and [num_tokens, num_heads] float32.
struct MergeView {
  char* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  char* lse = nullptr;  // null: not given
  std::int64_t lse_token_stride = 0;
  std::int64_t lse_head_stride = 0;
  bool vectors = false;  // every piece of 8 elements is aligned for accesses of 16 bytes
};

/// Partials that a launch passes itself; more lie in device memory.
inline constexpr int kMergeInline = 32;

struct MergeParams {
  MergeView partials[kMergeInline];
  const MergeView* more = nullptr;  // [num_partials] where there are more than kMergeInline
  MergeView out;                    // may be one of the partials
  std::int64_t num_rows = 0;        // num_tokens * num_heads
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int32_t num_partials = 0;
};

}  // namespace hpcattn
