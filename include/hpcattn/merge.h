// SPDX-License-Identifier: Apache-2.0
// Merging of partial attention results by their LSE (context parallel, cascades, split KV).
#pragma once

#include <vector>

#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// out = sum_s exp(lse_s - lse) out_s, lse = log(sum_s exp(lse_s)), over disjoint sets of KV
/// tokens. A partial with lse = -inf counts for nothing, whatever its output holds. All -inf: 0 and
/// -inf.
struct MergeArgs {
  std::vector<Tensor>
      partials;              // each [num_tokens, num_heads, head_dim], float32, float16 or bfloat16
  std::vector<Tensor> lses;  // each [num_tokens, num_heads] float32, natural logarithm
  Tensor out;  // [num_tokens, num_heads, head_dim], as partials or float32; may be one of them
  Tensor lse;  // optional [num_tokens, num_heads] float32
};

/// The order of the partials fixes the bits. Throws InvalidArgument or Unsupported.
void merge_partials(const MergeArgs& args, const Execution& execution = {});

}  // namespace hpcattn
