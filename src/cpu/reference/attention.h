// SPDX-License-Identifier: Apache-2.0
// Attention in float64, written from the formula of include/hpcattn/attention.h with plain loops.
// It shares no mask, index or conversion code with the kernels, and only tests use it. It checks
// nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "hpcattn/attention.h"

namespace hpcattn::reference {

/// In real units and not rounded: an fp8 output is out / out_scale, rounded, where out_scale is
/// given. The last four members say how large the terms are that a result was summed from, for
/// tolerances.
struct AttentionResult {
  std::vector<double> out;                // [num_tokens, num_q_heads, head_dim]
  std::vector<double> lse;                // [num_tokens, num_q_heads]
  std::vector<double> out_magnitude;      // as out: the same sum over |v|
  std::vector<double> value_magnitude;    // as out: sum of |v| over what the row sees
  std::vector<double> score_magnitude;    // as lse: largest sum of a visible score's |terms|
  std::vector<std::int64_t> num_visible;  // as lse: KV tokens that the row sees
};

AttentionResult attention(const PagedAttentionArgs& args);
AttentionResult attention(const PackedAttentionArgs& args);

}  // namespace hpcattn::reference
