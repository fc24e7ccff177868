// SPDX-License-Identifier: Apache-2.0
// The layouts of a float8 query's scales: one for all, [num_tokens, num_q_heads], or by request
// [num_requests, num_q_heads, most_tokens].
#pragma once

#include <cstdint>

#include "hpcattn/tensor.h"

namespace hpcattn::ops {

/// A query token, also by its place in its request.
struct QueryToken {
  std::int64_t token = 0;
  std::int64_t request = 0;
  std::int64_t of_request = 0;
};

inline bool is_by_request(const Tensor& scale) { return scale.rank() == 3; }

/// Elements before the scale of one token and head.
inline std::int64_t query_scale_offset(const Tensor& scale, const QueryToken& at,
                                       std::int64_t head) {
  if (scale.rank() == 1) return 0;
  if (!is_by_request(scale)) return at.token * scale.stride(0) + head * scale.stride(1);
  return at.request * scale.stride(0) + head * scale.stride(1) + at.of_request * scale.stride(2);
}

}  // namespace hpcattn::ops
