// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU: the tasks of a plan, by threads. Arguments are checked before (src/ops).
#pragma once

#include "hpcattn/attention.h"
#include "src/plan/plan.h"

namespace hpcattn::cpu {

/// Paged and packed attention alike.
struct AttentionProblem {
  Tensor q;
  Tensor k;  // [num_pages, page_size, num_kv_heads, head_dim], or [num_kv_tokens, num_kv_heads,
             // head_dim]
  Tensor v;
  Tensor page_table;  // not given: packed
  Tensor cu_seqlens_q;
  Tensor cu_seqlens_k;  // packed: where a request's KV tokens begin
  Tensor kv_lens;
  Tensor out;
  Tensor lse;
  AttentionOptions options;
  plan::PlanView plan;
};

void run_attention(const AttentionProblem& problem, const Execution& execution);

/// "cpu/narrow/avx2": the kernel that a task of so many rows takes on this machine.
std::string kernel_name(std::int64_t rows);

}  // namespace hpcattn::cpu
