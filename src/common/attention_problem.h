// SPDX-License-Identifier: Apache-2.0
// A call of attention as the operators hand it to a device's code: paged and packed alike, checked.
#pragma once

#include "hpcattn/attention.h"

namespace hpcattn {

struct AttentionProblem {
  Tensor q;
  Tensor k;  // [num_pages, page_size, num_kv_heads, head_dim], or [num_kv_tokens, num_kv_heads,
             // head_dim]
  Tensor v;
  Tensor page_table;  // not given: packed
  Tensor cu_seqlens_q;
  Tensor cu_seqlens_k;  // packed: where a request's KV tokens begin
  Tensor kv_lens;       // on a GPU not given for packed K and V
  Tensor out;
  Tensor lse;
  AttentionOptions options;
};

}  // namespace hpcattn
